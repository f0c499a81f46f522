"""CUDA graphs, simulated on CPU memory over all operations of a captured function.

`capture` runs a function once and writes down every operation with the memory that it touched. A replay runs these
operations again on the same memory, and no Python. What CUDA refuses in a capture is refused here: reading a value on
the host, sizes that depend on values, data that comes from the host. Memory that was allocated in the capture is
poisoned before every replay, and after it, except for the outputs; memory from outside that has been freed meanwhile,
as a tensor that a caller uploaded for one call alone, makes a replay fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map, tree_map_only

READS = ("item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__", "__array__", "pin_memory")
FROM_HOST = (torch.tensor, torch.as_tensor, torch.from_numpy, torch.asarray)
SIZED_BY_VALUES = ("aten::nonzero", "aten::_local_scalar_dense", "aten::masked_select", "aten::_unique2",
                   "aten::equal", "aten::is_nonzero", "aten::lift_fresh")  # fmt: skip
BY_INDEX = ("aten::index", "aten::index_put", "aten::index_put_")


class CaptureError(RuntimeError):
    """What CUDA would refuse, or what would read memory that is no longer there."""


class Place(NamedTuple):
    """A tensor by its memory."""

    memory: Memory
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def tensor(self) -> Tensor:
        return torch.empty(0, dtype=self.dtype).set_(self.memory.storage(), self.offset, self.size, self.stride)


class Memory:
    """A storage: of the graph, which keeps it, or from outside, which it only knows."""

    def __init__(self, storage: torch.UntypedStorage, owned: bool) -> None:
        self.kept = storage if owned else None
        self.reference = StorageWeakRef(storage)

    def storage(self) -> torch.UntypedStorage:
        if self.kept is not None:
            return self.kept
        if self.reference.expired():
            raise CaptureError("Invalid replay: expected memory that stays, got memory freed since the capture")
        return torch.UntypedStorage._new_with_weak_ptr(self.reference.cdata)

    def poison(self) -> None:
        torch.empty(0, dtype=torch.uint8).set_(self.storage()).fill_(0xFF)  # NaN as a float, -1 as an integer


class Graph:
    """The operations of a captured function, in order."""

    def __init__(self) -> None:
        self.memories: dict[int, Memory] = {}
        self.operations: list[tuple[Any, Any, Any, list[Place]]] = []

    def place(self, tensor: Tensor, owned: bool) -> Place:
        storage = tensor.untyped_storage()
        memory = self.memories.setdefault(storage._cdata, Memory(storage, owned))
        return Place(memory, tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())

    def record(self, operation: Any, arguments: Any, options: Any, result: Any) -> None:
        """Writes an operation down; one that only makes a view needs no replay."""
        given, named = tree_map_only(Tensor, lambda x: self.place(x, owned=False), (arguments, options))
        outputs = tensors_of(result)
        fresh = [self.place(x, owned=True) for x in outputs if x.untyped_storage()._cdata not in self.memories]
        if fresh or operation._schema.is_mutable:
            places = fresh if len(fresh) == len(outputs) else []
            if not places and not operation._schema.is_mutable:
                raise CaptureError(f"{operation} mixes fresh outputs and views; teach the simulation how to replay it")
            self.operations.append((operation, given, named, places))

    def run(self, outputs: set[int]) -> None:
        """All operations again. What is not an output holds poison before and after."""
        own = [memory for memory in self.memories.values() if memory.kept is not None]
        for memory in own:
            memory.poison()
        for operation, arguments, options, results in self.operations:
            given, named = tree_map(restored, (arguments, options), is_leaf=lambda x: isinstance(x, Place))
            found = tensors_of(operation(*given, **named))
            for place, value in zip(results, found if results else [], strict=True):
                place.tensor().copy_(value)
        for memory in own:
            if memory.kept._cdata not in outputs:
                memory.poison()


def tensors_of(result: Any) -> list[Tensor]:
    return [x for x in (result if isinstance(result, tuple | list) else [result]) if isinstance(x, Tensor)]


def restored(value: Any) -> Any:
    return value.tensor() if isinstance(value, Place) else value


class Recorder(TorchDispatchMode):
    """Writes every operation down, and refuses those that CUDA would refuse."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = operation._schema.name
        by_mask = name in BY_INDEX and any(isinstance(x, Tensor) and x.dtype == torch.bool for x in args[1])
        if by_mask or name in SIZED_BY_VALUES:
            raise CaptureError(f"Invalid capture: expected operations that no host waits for, got {operation}")
        result = operation(*args, **(kwargs or {}))
        self.graph.record(operation, args, kwargs or {}, result)
        return result


class HostReads(TorchFunctionMode):
    """Refuses what never reaches the dispatcher: on a CPU, values are read straight from memory."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name in READS or function in FROM_HOST:
            raise CaptureError(f"Invalid capture: expected no value from or for the host, got {name}")
        return function(*args, **(kwargs or {}))


def capture(run: Callable[[], tuple[Tensor, ...]], device: torch.device) -> Callable[[], tuple[Tensor, ...]]:
    """In place of `lsp.decoding.graphs.capture`. The first run has happened before a capture, as on a GPU."""
    run()
    graph = Graph()
    with HostReads(), Recorder(graph):
        outputs = run()
    held = {x.untyped_storage()._cdata for x in outputs}

    def replay() -> tuple[Tensor, ...]:
        graph.run(held)
        return outputs

    return replay
