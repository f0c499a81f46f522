"""The compiled PTX of the block kernels, launched through Triton's JIT and executed: exact, within bounds, no races."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from lsp_kernels.triton import block
from tests.block_cases import GateCase, NormCase, RotationCase, gate_cases, norm_cases, rotation_cases, values
from tests.gpus import Moved, VirtualGpu, times
from tests.strategies import DTYPES
from tests.triton.served import Served

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


@pytest.mark.gpu("sm_100")
def test_the_longest_rows(gpu: VirtualGpu) -> None:
    x, residual, weight = (
        values(shape, torch.bfloat16, i) for i, shape in enumerate([(1, 32768), (1, 32768), (32768,)])
    )
    NormCase(x, residual, weight, 1e-6).check(ON_GPU)
