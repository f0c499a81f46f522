"""The processes of one evaluation, as torchrun starts them. They exchange small objects only, over gloo."""

from __future__ import annotations

import logging
import os
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from lsp.models.loading import as_device

log = logging.getLogger("lm_eval.models.lsp")


class Ranks:
    """This process among those that share the documents; alone unless torchrun has started it.

    Attributes
    ----------
    rank, size : int
        The number of this process, and how many there are.
    local : int
        Its number on this machine, which is that of its GPU.
    """

    def __init__(self) -> None:
        self.rank, self.local = (int(os.environ.get(name, "0")) for name in ("RANK", "LOCAL_RANK"))
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        if self.size == 1:
            self.rank = self.local = 0
            return
        if dist.is_initialized():
            self._group: Any = dist.new_group(backend="gloo")
        else:
            dist.init_process_group("gloo")
            self._group = dist.group.WORLD

    def device(self, asked: str | None) -> str:
        """The device of this process. lm-eval asks for ``cuda:0`` by default, also where there is no GPU."""
        if asked is not None and as_device(asked).type != "cuda":
            return asked
        if not torch.cuda.is_available():
            if asked is not None:
                log.warning("no GPU here: the model runs on the CPU, not on %s", asked)
            return "cpu"
        return asked if asked is not None and self.size == 1 else f"cuda:{self.local}"

    def all_gather(self, tensor: Tensor) -> Tensor:
        """The tensors of all processes, in their order, one after another."""
        if self.size == 1:
            return tensor
        here = torch.atleast_1d(tensor.cpu())
        out = [torch.empty_like(here) for _ in range(self.size)]
        dist.all_gather(out, here, group=self._group)
        return torch.cat(out).to(tensor.device)

    def gather_object(self, thing: Any, to: int = 0) -> list[Any] | None:
        """The objects of all processes, for one of them; None for the others."""
        if self.size == 1:
            return [thing]
        out: list[Any] | None = [None] * self.size if self.rank == to else None
        dist.gather_object(thing, out, dst=to, group=self._group)
        return out

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier(group=self._group)
