"""The compiled PTX of the block kernels, launched through Triton's JIT and executed: exact, within bounds, no races."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given

from lsp_kernels.triton import block
from lsp_kernels.triton.aot.builds import Build, build_block
from tests.block_cases import GateCase, NormCase, RotationCase, gate_cases, norm_cases, rotation_cases, values
from tests.gpus import Moved, VirtualGpu, times
from tests.strategies import DTYPES
from tests.triton.served import Served
from tests.virtual_gpu import RaceError, launch
from tests.virtual_gpu.mutate import without_each_barrier

ON_GPU = Moved(Served(block))


@pytest.mark.gpu("sm_90")
@times(100, virtual=6)
@given(norm=norm_cases(), rotation=rotation_cases(), gate=gate_cases())
def test_any_operands(gpu: VirtualGpu, norm: NormCase, rotation: RotationCase, gate: GateCase) -> None:
    for case in (norm, rotation, gate):
        case.check(ON_GPU)


@pytest.mark.gpu("sm_80")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_sizes_of_published_models(gpu: VirtualGpu, dtype: torch.dtype) -> None:
    """LLaDA's rows, Dream's heads, and gates that no tile divides."""
    NormCase(values((1, 4096), dtype, 0), values((1, 4096), dtype, 1), values((4096,), dtype, 2), 1e-5).check(ON_GPU)
    RotationCase(values((2, 36, 128), dtype, 3), (28, 4), values((2, 64), torch.float32, 4, 30.0)).check(ON_GPU)
    GateCase(values((1, 2 * 2960), dtype, 5, 4.0)).check(ON_GPU)


@pytest.mark.gpu("sm_80", "sm_100")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [128, 256])
def test_norms_of_heads(gpu: VirtualGpu, size: int, dtype: torch.dtype) -> None:
    """Qwen3's heads, and the largest ones, whose halves lie in several warps."""
    norms = values((size,), dtype, 8), values((size,), dtype, 9)
    angles = values((2, size // 2), torch.float32, 7, 30.0)
    RotationCase(values((2, 32, size), dtype, 6), (16, 8), angles, norms, 1e-6).check(ON_GPU)


@pytest.mark.gpu("sm_100")
def test_the_longest_rows(gpu: VirtualGpu) -> None:
    x, residual, weight = (
        values(shape, torch.bfloat16, i) for i, shape in enumerate([(1, 32768), (1, 32768), (32768,)])
    )
    NormCase(x, residual, weight, 1e-6).check(ON_GPU)


def arguments(made: Build) -> tuple[int, dict[str, Any]]:
    """Programs and arguments of an aligned build of a norm or a rotation: more rows or heads than a program has."""
    size = made.constants["D"]
    if made.kernel is block.add_norm_kernel:
        rows = made.constants["ROWS"] + 1
        tensors = {name: values((rows, size), torch.bfloat16, 0) for name in ("x_ptr", "residual_ptr", "out_ptr")}
        strides = {"s_x": size // block.UNIT, "s_xh": 0, "s_r": size // block.UNIT, "s_rh": 0}
        return 2, tensors | strides | {"weight_ptr": tensors["x_ptr"][0].clone(), "rows": rows, "inner": 1, "eps": 1e-6}
    heads, tensors = made.constants["HEADS"] + 1, {}
    for name, shape in {
        "q_ptr": (heads, size),
        "k_ptr": (1, size),
        "q_norm_ptr": (size,),
        "k_norm_ptr": (size,),
    }.items():
        tensors[name] = values(shape, torch.bfloat16, 0)
    tables = {name: values((1, size // 2), torch.float32, 1) for name in ("cos_ptr", "sin_ptr")}
    strides = dict.fromkeys(("s_qt", "s_qh", "s_kt", "s_kh"), size // block.UNIT)  # there is one token
    return 3, tensors | tables | strides | {"n_q": heads, "n_k": 1, "eps": 1e-6}


@pytest.mark.parametrize(
    ("made", "barriers"),
    [
        pytest.param(build_block(block.add_norm_kernel, "sm_80"), 2, id="long rows"),
        pytest.param(build_block(block.add_norm_kernel, "sm_80", size=128, residual=False), 1, id="short rows"),
        pytest.param(build_block(block.rotate_kernel, "sm_80", size=256), 3, id="heads"),
        pytest.param(build_block(block.rotate_kernel, "sm_80", size=256, norms=True), 11, id="heads with norms"),
    ],
)
def test_no_barrier_can_be_removed(made: Build, barriers: int) -> None:
    compiled = made.compile()
    programs, given = arguments(made)

    def run(text: str) -> None:
        launch(text, (programs,), [given[name] for name in made.signature], shared=compiled.shared, seed=1)

    run(compiled.text)
    damaged = [*without_each_barrier(compiled.text)]
    assert len(damaged) == barriers
    for text in damaged:
        with pytest.raises(RaceError):
            run(text)
