"""The GPUs that can be imitated, as `torch.cuda` and Triton ask about them."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
SHARED = {80: 163 * KIB, 86: 99 * KIB, 89: 99 * KIB, 90: 227 * KIB, 100: 227 * KIB, 120: 99 * KIB}


@dataclass(frozen=True)
class Device:
    """An NVIDIA GPU under the names of `torch.cuda.get_device_properties`."""

    name: str  # "sm_90"
    multi_processor_count: int

    @classmethod
    def of(cls, name: str, processors: int) -> Device:
        known = [f"sm_{capability}" for capability in SHARED]
        if name not in known:
            raise ValueError(f"Invalid architecture: expected one of {', '.join(known)}, got {name!r}")
        return cls(name, processors)

    @property
    def capability(self) -> int:
        return int(self.name.removeprefix("sm_"))

    @property
    def major(self) -> int:
        return self.capability // 10

    @property
    def minor(self) -> int:
        return self.capability % 10

    @property
    def shared(self) -> int:
        """Bytes of shared memory that one program may use."""
        return SHARED[self.capability]
