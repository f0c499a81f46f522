"""Which GPU, driver and versions a run was made with."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Any

import torch

from lsp_kernels.info import accelerators, versions

RIVALS = ("flash-attn",)


def machine() -> dict[str, Any]:
    """Everything that a reader of the figures must know. What is unknown says so."""
    properties = torch.cuda.get_device_properties(0)
    found: dict[str, Any] = {"gpu": torch.cuda.get_device_name(0)}
    found["served"] = dict(accelerators())["GPU 0"]
    found["processors"] = properties.multi_processor_count
    found["memory"] = getattr(properties, "total_memory", "unknown")
    found["L2 cache"] = getattr(properties, "L2_cache_size", "unknown")
    found["CUDA"], found["HIP"] = torch.version.cuda or "none", torch.version.hip or "none"
    found["host"] = platform.processor() or platform.machine()
    return found | dict(versions()) | {name: version_of(name) for name in RIVALS}


def is_served() -> bool:
    """Whether the Triton kernels serve this GPU; if not, there is nothing of ours to measure."""
    return "served by the reference" not in dict(accelerators())["GPU 0"]


def version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
