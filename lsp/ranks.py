"""The processes that hold one model together: what they send each other, how much of it, and what is said if one dies.

Tensors travel over the process group of torch (NCCL for GPUs, gloo for CPUs), small objects over a gloo group beside
it. Every rank makes the same calls in the same order.
"""

from __future__ import annotations

import os
import pickle
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

BLOCK = 4096
"""Bytes of the first part of a message, with its length in the first 8; most messages need no second part."""

Group = Any  # dist.ProcessGroup, which is not there in every build of torch


class RankError(RuntimeError):
    """A collective failed, most likely because another rank has ended."""


class Ranks:
    """This process among those that hold one model.

    Parameters
    ----------
    group : ProcessGroup, optional
        By default all processes.
    patience : timedelta, optional
        How long a rank waits for the others when they exchange objects; by default as long as torch does.

    Attributes
    ----------
    rank, size : int
        The number of this process, and how many there are.
    calls, payload : Counter
        How often each kind of collective was called, and how many bytes this rank put into them all.
    """

    def __init__(self, group: Group = None, patience: timedelta | None = None) -> None:
        self.group: Group = dist.group.WORLD if group is None else group
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        members = dist.get_process_group_ranks(self.group)
        self._first = members[0]
        with self._in_words("new_group"):
            self._control = dist.new_group(members, patience, "gloo", use_local_synchronization=True)
        self.calls: Counter[str] = Counter()
        self.payload: Counter[str] = Counter()

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, in place."""
        self._count("all_reduce", tensor.nbytes)
        with self._in_words("all_reduce"):
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks, which have the same shape, in their order."""
        self._count("all_gather", tensor.nbytes)
        out = [torch.empty_like(tensor) for _ in range(self.size)]
        with self._in_words("all_gather"):
            dist.all_gather(out, tensor.contiguous(), group=self.group)
        return out

    def tell(self, thing: Any) -> None:
        """Rank 0 sends a small object to the others, who `hear` it."""
        content = pickle.dumps(thing)
        message = len(content).to_bytes(8, "little") + content
        padded = message.ljust(BLOCK, b"\0")
        self._broadcast(torch.frombuffer(bytearray(padded[:BLOCK]), dtype=torch.uint8))
        if len(message) > BLOCK:
            self._broadcast(torch.frombuffer(bytearray(message[BLOCK:]), dtype=torch.uint8))

    def hear(self) -> Any:
        """What rank 0 tells."""
        first = self._broadcast(torch.empty(BLOCK, dtype=torch.uint8)).numpy().tobytes()
        missing = 8 + int.from_bytes(first[:8], "little") - BLOCK
        rest = b""
        if missing > 0:
            rest = self._broadcast(torch.empty(missing, dtype=torch.uint8)).numpy().tobytes()
        return pickle.loads((first + rest)[8:])

    def share(self, thing: Any) -> Any:
        """The object of rank 0, on every rank."""
        if self.rank == 0:
            self.tell(thing)
            return thing
        return self.hear()

    def gather(self, thing: Any) -> list[Any]:
        """The small objects of all ranks, in their order, on every rank."""
        everywhere: list[Any] = [None] * self.size
        with self._in_words("all_gather_object"):
            dist.all_gather_object(everywhere, thing, group=self._control)
        return everywhere

    def check_same(self, **things: Any) -> None:
        """Raises on every rank, and names it, if something is not the same everywhere."""
        everywhere = self.gather(things)
        for rank, there in enumerate(everywhere):
            for name, expected in everywhere[0].items():
                if there[name] != expected:
                    raise ValueError(f"Invalid {name} on rank {rank}: expected what rank 0 was given, got another")

    @property
    def sent(self) -> int:
        """How many bytes of tensors this rank has sent, if collectives go round a ring, as they do over gloo."""
        others = self.size - 1
        return 2 * self.payload["all_reduce"] * others // self.size + self.payload["all_gather"] * others

    def _broadcast(self, content: Tensor) -> Tensor:
        self._count("broadcast", content.nbytes)
        with self._in_words("broadcast"):
            dist.broadcast(content, self._first, group=self._control)
        return content

    def _count(self, kind: str, nbytes: int) -> None:
        self.calls[kind] += 1
        self.payload[kind] += nbytes

    @contextmanager
    def _in_words(self, kind: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # torch's own errors of collectives derive from it
            reason = re.sub(r"^\[[^]]*\] ", "", str(error).strip()).split(". ")[
                0
            ]  # without the place in torch's sources
            raise RankError(
                f"{kind} failed on rank {self.rank} of {self.size}: expected all ranks to take part, got one that has "
                f"ended or cannot be reached ({reason})"
            ) from error


def in_torchrun() -> bool:
    """Whether torchrun, or something that sets the same variables, has started this process beside others."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_first() -> bool:
    """Whether this process is the only one, or the first of those that torchrun has started."""
    return not in_torchrun() or os.environ.get("RANK", "0") == "0"


def leave() -> None:
    """Ends the process group, if there is one: a process that has done its part says so before it ends."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def ranks_of(asked: bool | Group, device: torch.device, patience: timedelta | None = None) -> Ranks | None:
    """The ranks that hold a model: None for False, all processes for True, else those of a group.

    The process group is made if there is none yet.
    """
    if asked is False or asked is None:
        return None
    if not dist.is_available():
        raise ValueError("Invalid tensor_parallel: expected a torch with torch.distributed, got one without")
    if asked is not True and not isinstance(asked, dist.ProcessGroup):
        raise TypeError(f"Invalid tensor_parallel: expected True, False or a ProcessGroup, got {asked!r}")
    if not dist.is_initialized():
        if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
            expected = "a process started by torchrun, or torch.distributed.init_process_group before"
            raise ValueError(f"Invalid tensor_parallel: expected {expected}, got neither")
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return Ranks(None if asked is True else asked, patience)


def own_device(device: torch.device | str) -> torch.device:
    """The device of this rank: a GPU without a number is the one with the number of the process on its machine."""
    given = torch.device(device)
    if given.type != "cuda" or given.index is not None:
        return given
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
