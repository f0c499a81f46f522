"""The GPU architectures that the tables of this package know, and which of them a torch device is."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

NVIDIA = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
CDNA = ("gfx942", "gfx950")
RDNA = ("gfx1100", "gfx1201")
ARCHITECTURES = (*NVIDIA, *CDNA, *RDNA)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Device:
    """What a launch must know about its GPU: the architecture, and the number of processors (SMs, CUs or WGPs)."""

    architecture: str
    processors: int


@functools.cache
def device_of(device: torch.device) -> Device:
    """The GPU of a torch device. A CPU, on which kernels are interpreted, counts as a small sm_80."""
    if device.type == "cpu":
        return Device("sm_80", 4)
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        name = properties.gcnArchName.split(":")[0]
        return Device(nearest(name), properties.multi_processor_count)
    return Device(nearest(f"sm_{properties.major}{properties.minor}"), properties.multi_processor_count)


def nearest(architecture: str) -> str:
    """The architecture itself if it is known, else the newest older one of its vendor, else the vendor's oldest."""
    if architecture in ARCHITECTURES:
        return architecture
    vendor = "sm_" if architecture.startswith("sm_") else "gfx"

    def age(name: str) -> int:
        return int(name.removeprefix(vendor), 16)

    known = [name for name in ARCHITECTURES if name.startswith(vendor)]
    older = [name for name in known if age(name) <= age(architecture)]
    return max(older, key=age) if older else known[0]
