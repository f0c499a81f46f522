"""csrc/torch_abi.h says what torch's own headers say. The kernels are compiled from it, where no torch is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.install.compiler import syntax_errors
from tests.support import ROOT

DECLARATIONS = (ROOT / "csrc/torch_abi.h").read_text()
FUNCTION = r"\b((?:aoti_)?torch_\w+)\("
HEADERS = Path(torch.__file__).parent / "include"
CHECK = """
#define TORCH_TARGET_VERSION 0x020a000000000000
#include <torch/csrc/stable/library.h>
#include <type_traits>

// torch's headers come first, so that a function which they do not declare is an error here,
{uses}
// and one whose types differ is an error there.
{declarations}

static_assert(TORCH_ABI == TORCH_VERSION_2_10_0 && TORCH_OK == TORCH_SUCCESS);
static_assert(std::is_same_v<StableIValue, uint64_t>);
"""


def errors(declarations: str) -> str:
    """What the compiler says of declarations beside torch's own."""
    if not (HEADERS / "torch/csrc/stable/library.h").exists():
        pytest.skip("this torch has no headers")
    uses = "\n".join(f"using Check_{name} = decltype(&{name});" for name in re.findall(FUNCTION, declarations))
    return syntax_errors(CHECK.format(uses=uses, declarations=declarations.replace("#pragma once", "")), HEADERS)


def test_every_function_is_declared_as_torch_declares_it() -> None:
    assert len(re.findall(FUNCTION, DECLARATIONS)) == 26
    assert errors(DECLARATIONS) == ""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("torch_get_num_threads(uint32_t*", "torch_get_num_threads(int64_t*"),
        ("int64_t** sizes", "int64_t* sizes"),
        ("aoti_torch_get_dim(", "aoti_torch_get_dimension("),
        ("size_t aoti_torch_dtype_element_size", "int32_t aoti_torch_dtype_element_size"),
        ("using StableIValue = uint64_t", "using StableIValue = int64_t"),
        ("TORCH_OK = 0", "TORCH_OK = 1"),
        ("(uint64_t(10) << 48)", "(uint64_t(9) << 48)"),
    ],
)
def test_another_name_type_or_constant_is_noticed(old: str, new: str) -> None:
    assert DECLARATIONS.count(old) == 1
    assert "error" in errors(DECLARATIONS.replace(old, new))


def test_the_kernels_include_nothing_of_torch() -> None:
    for path in (ROOT / "csrc").iterdir():
        assert not re.search(r"#include <(?:torch|ATen|c10)", path.read_text()), path.name
