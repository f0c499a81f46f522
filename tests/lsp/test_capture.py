"""How a pass becomes a CUDA graph, on a stand-in for torch.cuda that writes down what happens in which order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from lsp.decoding.graphs import capture

GPU = torch.device("cuda", 0)


class Cuda:
    """Streams have names, and a graph knows only that it was made and replayed."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.place = "the current stream"

    def run(self) -> tuple[Tensor, ...]:
        self.events.append(f"run on {self.place}")
        return (torch.zeros(1),)

    @contextmanager
    def inside(self, place: str) -> Iterator[None]:
        before, self.place = self.place, place
        yield
        self.place = before


@dataclass
class Stream:
    cuda: Cuda
    name: str

    def wait_stream(self, other: Stream) -> None:
        self.cuda.events.append(f"{self.name} waits for {other.name}")


@dataclass
class Graph:
    cuda: Cuda

    def replay(self) -> None:
        self.cuda.events.append("replay")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(made, made.place))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(made, "a side stream"))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: made.inside(stream.name))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: Graph(made))
    monkeypatch.setattr(torch.cuda, "graph", lambda graph: made.inside("a graph"))
    return made


def test_a_pass_runs_on_a_side_stream_before_it_is_captured(cuda: Cuda) -> None:
    """In the order that torch asks for: what comes before is finished, and so is the warm-up before the capture."""
    capture(cuda.run, GPU)
    assert cuda.events == [
        "a side stream waits for the current stream",
        "run on a side stream",
        "the current stream waits for a side stream",
        "run on a graph",
    ]


def test_a_replay_runs_nothing_but_the_graph_and_returns_what_was_captured(cuda: Cuda) -> None:
    kept: list[tuple[Tensor, ...]] = []

    def run() -> tuple[Tensor, ...]:
        kept.append(cuda.run())
        return kept[-1]

    replay = capture(run, GPU)
    before = len(cuda.events)
    for _ in range(2):
        (out,) = replay()
        assert out is kept[1][0], "the tensor of the capture, not of the warm-up"
    assert cuda.events[before:] == ["replay", "replay"]


def test_each_capture_is_a_graph_of_its_own(cuda: Cuda) -> None:
    one, other = capture(cuda.run, GPU), capture(cuda.run, GPU)
    assert one()[0] is not other()[0]


def test_on_a_cpu_a_replay_is_the_run_itself(cuda: Cuda) -> None:
    run = cuda.run
    assert capture(run, torch.device("cpu")) is run
    assert cuda.events == []
