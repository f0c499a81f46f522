"""Two processes that hold one model together, kept for many tests: starting them is what takes time."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import multiprocessing

SECONDS = 300.0  # a machine may be busy, and a hang must end


class FailedError(Exception):
    """A job raised on a rank; the message ends with its error."""


class Pair:
    """Runs functions of a module in all of its processes at once, as a program under torchrun does."""

    def __init__(self, folder: Path, size: int = 2) -> None:
        context = multiprocessing.get_context("spawn")
        ends = [context.Pipe() for _ in range(size)]
        self.pipes: list[Connection] = [mine for mine, _ in ends]
        self.processes = [
            context.Process(target=serve, args=(rank, size, folder / "meeting", theirs), daemon=True)
            for rank, (_, theirs) in enumerate(ends)
        ]
        for process in self.processes:
            process.start()

    def start(self, job: Callable[..., Any], *arguments: Any) -> None:
        for pipe in self.pipes:
            pipe.send((job, arguments))

    def result(self, rank: int) -> Any:
        """What the job has returned on a rank."""
        if not self.pipes[rank].poll(SECONDS):
            raise TimeoutError(f"rank {rank} has not answered within {SECONDS} s")
        done, out = self.pipes[rank].recv()
        if not done:
            raise FailedError(f"rank {rank}: {out}")
        return out

    def run(self, job: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What the job returns on every rank."""
        self.start(job, *arguments)
        return [self.result(rank) for rank in range(len(self.pipes))]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def serve(rank: int, size: int, meeting: Path, pipe: Connection) -> None:
    """One of the processes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    while True:
        job, arguments = pipe.recv()
        try:
            pipe.send((True, job(*arguments)))
        except Exception:
            pipe.send((False, traceback.format_exc()))
