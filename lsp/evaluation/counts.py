"""What the documents of an evaluation cost, each counted once, however often and in whichever process it was asked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from typing import Any, NamedTuple


class Cost(NamedTuple):
    """Tokens, passes of the model, and token positions in these passes."""

    tokens: int
    passes: int
    positions: int


class Counts:
    """The cost of every request, by what was asked, task, document and part of the document.

    The same request asked again replaces its cost, so sums over several processes are honest even if one of them was
    given a request only to keep it busy.

    Examples
    --------
    >>> counts = Counts()
    >>> counts.add("generate_until", "sums", 7, 0, Cost(tokens=12, passes=4, positions=90))
    >>> counts.add("generate_until", "sums", 7, 0, Cost(tokens=12, passes=4, positions=90))
    >>> counts.summary()["sums"]["documents"], counts.summary()["sums"]["mean"]
    (1, {'tokens': 12.0, 'passes': 4.0, 'positions': 90.0})
    """

    def __init__(self) -> None:
        self._costs: dict[tuple[str, str, int, Hashable], Cost] = {}

    def begin(self, kind: str) -> None:
        """Forgets requests of this kind: those of an earlier evaluation."""
        self._costs = {key: cost for key, cost in self._costs.items() if key[0] != kind}

    def add(self, kind: str, task: str, document: int, part: Hashable, cost: Cost) -> None:
        self._costs[kind, task, document, part] = cost

    def merge(self, other: Counts) -> None:
        """Takes over what another process has counted."""
        self._costs |= other._costs

    def summary(self) -> dict[str, Any]:
        """For each task: how many documents, the mean cost of one, and the cost of each, as lists of one order."""
        tasks: dict[str, dict[int, list[Cost]]] = defaultdict(lambda: defaultdict(list))
        for (_, task, document, _), cost in self._costs.items():
            tasks[task][document].append(cost)
        return {task: _summary(documents) for task, documents in sorted(tasks.items())}


def _summary(documents: dict[int, list[Cost]]) -> dict[str, Any]:
    ids = sorted(documents)
    lists = {name: [sum(getattr(c, name) for c in documents[i]) for i in ids] for name in Cost._fields}
    mean = {name: sum(values) / len(ids) for name, values in lists.items()}
    return {"documents": len(ids), "mean": mean, "by_document": {"doc_id": ids, **lists}}


__all__ = ["Cost", "Counts"]
