"""The GPU architectures that the tables of this package know, and which of them a torch device is.

The kernels publish results to each other by a recipe that is proven for each of these architectures. Any other one is
not served by Triton: its barriers and caches may need another recipe.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

NVIDIA = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
CDNA = ("gfx942", "gfx950")
RDNA = ("gfx1100", "gfx1201")
ARCHITECTURES = (*NVIDIA, *CDNA, *RDNA)
# Variants with the instructions, the PTX memory model and at least the shared memory of the one they are served as.
SIBLINGS = {"sm_87": "sm_86", "sm_103": "sm_100", "sm_121": "sm_120"}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Device:
    """What a launch must know about its GPU: the architecture, and the number of processors (SMs, CUs or WGPs)."""

    architecture: str
    processors: int


def query(device: torch.device) -> Device:
    """The GPU of a torch device under its own name. A CPU, where kernels are interpreted, counts as a small sm_80."""
    if device.type == "cpu":
        return Device("sm_80", 4)
    properties = torch.cuda.get_device_properties(device)
    hip = torch.version.hip is not None
    name = properties.gcnArchName.split(":")[0] if hip else f"sm_{properties.major}{properties.minor}"
    return Device(name, properties.multi_processor_count)


@functools.cache
def device_of(device: torch.device) -> Device:
    """The GPU of a torch device, as the tables name it. Raises for an architecture that they do not know."""
    if unknown := unknown_architecture(device):
        raise ValueError(f"Invalid device: expected {' or '.join(ARCHITECTURES)}, got {unknown}")
    found = query(device)
    return Device(SIBLINGS.get(found.architecture, found.architecture), found.processors)


@functools.cache
def unknown_architecture(device: torch.device) -> str | None:
    """The name of a GPU's architecture if the tables do not know it, else None."""
    name = query(device).architecture
    return None if name in ARCHITECTURES or name in SIBLINGS else name
