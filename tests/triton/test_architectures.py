"""Which GPUs the kernels serve: those whose architecture they are proven for. The reference serves all others."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from lsp_kernels import PrefixRule, Workspace, _ops, info
from lsp_kernels.triton import attention, commit
from lsp_kernels.triton.aot import TARGETS
from lsp_kernels.triton.configs.device import ARCHITECTURES, SIBLINGS, device_of
from lsp_kernels.workspace import reserve
from tests.support import ints
from tests.triton.launches import as_gpu

GPU = torch.device("cuda", 0)
UNKNOWN = ["sm_75", "sm_88", "sm_101", "sm_110", "gfx90a", "gfx1030", "gfx1101", "gfx1200"]
OPERATIONS = {
    "token_stats": ("commit", _ops._token_stats),
    "select_prefix": ("commit", _ops._select_prefix),
    "commit_prefix": ("commit", _ops._commit_prefix),
    "suffix_attention": ("attention", _ops._suffix_attention),
    "suffix_attention_into": ("attention", _ops._suffix_attention_into),
}


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU, which need not be there."""

    @property
    def device(self) -> torch.device:
        return GPU


def operands(name: str) -> list[Any]:
    """Good operands of an operator, in its order."""
    tokens, floats, cache = torch.zeros(6, 4, 32), torch.zeros(6, 10), torch.zeros(2, 4, 8, 32)
    known = {
        "logits": floats, "margins": floats[:, 0], "tokens": floats[:, 0].long(), "lowest": 0, "q": tokens,
        "k": tokens, "v": tokens, "k_cache": cache, "v_cache": cache.clone(), "cu_seqlens": ints(0, 2, 6),
        "prefix_lens": ints(1, 5), "scale": 1.0, "out": tokens.clone(), "id_offset": 0,
        "entropy": False, "log_odds": False,
    } | dict(zip(("alpha_ppm", "beta_ppm", "min_length", "window", "floor", "snap", "keep"),
                 PrefixRule(snap=False).arguments, strict=True))  # fmt: skip
    schema = getattr(torch.ops.lsp, name).default._schema
    values = [known.get(argument.name) for argument in schema.arguments]
    return [value.as_subclass(OnGpu) if isinstance(value, torch.Tensor) else value for value in values]


def backend(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """What is registered for GPUs."""
    return _ops._served_by_triton(OPERATIONS[name][0], name, plain)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("architecture", UNKNOWN)
def test_an_unknown_architecture_is_served_by_the_reference_with_a_warning_that_names_it(
    name: str, architecture: str
) -> None:
    served = []
    slow = f"not proven for the architecture {architecture}; the PyTorch reference serves cuda tensors.* slower$"
    with as_gpu(architecture), pytest.warns(_ops.SlowBackendWarning, match=slow):
        backend(name, lambda *_: served.append(name))(*operands(name))
    assert served == [name]


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("architecture", ["sm_90", "sm_121", "gfx1201"])
def test_a_known_architecture_is_served_by_triton(
    name: str, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    for module in (commit, attention):
        monkeypatch.setattr(module, name, lambda *_: "launched", raising=False)
    with as_gpu(architecture), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert backend(name, lambda *_: "reference")(*operands(name)) == "launched"


def test_known_architectures_are_compiled_and_siblings_are_served_as_the_one_they_resemble() -> None:
    assert set(ARCHITECTURES) == set(TARGETS)
    for name in (*ARCHITECTURES, *SIBLINGS):
        with as_gpu(name, processors=7):
            assert device_of(GPU).architecture == SIBLINGS.get(name, name)
            assert device_of(GPU).processors == 7
            assert _ops.triton_reason(GPU) is None


@pytest.mark.parametrize("architecture", UNKNOWN)
def test_no_table_is_read_for_an_unknown_architecture(architecture: str) -> None:
    with as_gpu(architecture):
        with pytest.raises(ValueError, match=f"Invalid device: expected sm_80 or .* or gfx1201, got {architecture}"):
            device_of(GPU)
        assert reserve(Workspace(), GPU, lambda: pytest.fail("the kernels do not run")) == (None, None)


def test_the_report_says_which_gpu_the_kernels_do_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Some GPU")
    with as_gpu("sm_75"):
        assert list(info.accelerators()) == [
            ("GPU 0", "Some GPU (sm_75); served by the reference: "
                      "the Triton kernels are not proven for the architecture sm_75"),
        ]  # fmt: skip
    with as_gpu("sm_90"):
        assert list(info.accelerators()) == [("GPU 0", "Some GPU (sm_90)")]
