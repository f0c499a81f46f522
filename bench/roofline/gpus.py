"""The GPUs that are computed for: peak rates as their makers publish them, for dense products without sparsity."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

from lsp_kernels.triton.configs import device


@dataclass(frozen=True)
class Gpu:
    """A GPU.

    Attributes
    ----------
    processors : int
        SMs or CUs, which decide how a launch is divided.
    bandwidth : float
        Bytes of memory per second.
    products : float
        Additions and multiplications of bfloat16 per second in tensor cores.
    """

    name: str
    architecture: str
    processors: int
    bandwidth: float
    products: float

    @contextmanager
    def planned(self) -> Iterator[None]:
        """Launches are planned for this GPU, whatever device the tensors are on."""
        known = (device.device_of, device.unknown_architecture)
        found = device.Device(self.architecture, self.processors)
        for remembered in known:
            remembered.cache_clear()
        try:
            with mock.patch.object(device, "query", return_value=found):
                yield
        finally:
            for remembered in known:
                remembered.cache_clear()


GPUS = (
    Gpu("A100 SXM 80 GB", "sm_80", 108, 2.039e12, 312e12),
    Gpu("H100 SXM", "sm_90", 132, 3.35e12, 989e12),
    Gpu("B200", "sm_100", 148, 8.0e12, 2250e12),
    Gpu("MI300X", "gfx942", 304, 5.3e12, 1307e12),
)
LAUNCH = 5e-6  # seconds of the host for a launch outside of a CUDA graph
