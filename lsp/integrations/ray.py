"""Offline generation by many workers: actors of Ray Data, each with the whole model.

``ray[data]`` is imported when a dataset is mapped, and not before. Ray gives every batch to one worker, replaces a
worker that dies, and gives its batch to another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

import lsp
from lsp.evaluation.likelihood import seed_of
from lsp.extras import needed_by
from lsp_kernels.errors import as_integer

NEW = ("text", "tokens", "finished", "passes", "positions")
"""The columns that are added: those of a `lsp.Generation`."""


class Generator:
    """A worker: loads the model once, and continues the prompts of every batch that it is given.

    Parameters
    ----------
    model : str
        As in `lsp.load`, which also takes `load`.
    column : str
        The column of the prompts.
    chat : bool
        Whether a prompt is what a user says, and goes through the chat template.
    seed : int
        The noise of a prompt depends on this and on its text, and on neither its worker nor its batch.
    threads : int, optional
        Threads of torch.
    load : mapping
    **arguments
        Those of `lsp.generate`.

    Examples
    --------
    >>> import numpy as np
    >>> from lsp.integrations.ray import Generator
    >>> worker = Generator("tiny", max_new_tokens=32)
    >>> worker({"prompt": np.array(["Use 3, 5 and 7 to make 15.\\n"])})["text"].tolist()
    ['First 7 + 5 = 12, then 12 + 3 = 15.']
    """

    def __init__(
        self,
        model: str,
        *,
        column: str = "prompt",
        chat: bool = False,
        seed: int = 0,
        threads: int | None = None,
        load: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self.model = lsp.load(model, **(load or {}))
        self.column, self.chat, self.seed, self.arguments = column, chat, seed, arguments

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The batch with the columns of `NEW`."""
        if self.column not in batch:
            raise ValueError(f"Invalid column: expected one of {sorted(batch)}, got {self.column!r}")
        texts = [str(text) for text in batch[self.column]]
        prompts: Sequence[Any] = [[{"role": "user", "content": text}] for text in texts] if self.chat else texts
        seeds = [seed_of(self.seed, text) for text in texts]
        found = lsp.generate(self.model, prompts, seed=seeds, **self.arguments)
        return {**batch, **{name: _column([getattr(one, name) for one in found]) for name in NEW}}


def generate(
    dataset: Any,
    model: str,
    *,
    workers: int = 1,
    batch_size: int = 8,
    cpus: float = 1,
    gpus: float = 0,
    **arguments: Any,
) -> Any:
    """Continues the prompts of a dataset by several workers, each with the whole model.

    Nothing runs before the rows are asked for, as always in Ray Data. Every row comes once, also if a worker dies.

    Parameters
    ----------
    dataset : ray.data.Dataset
        With a column of prompts; all columns are kept.
    model : str
        As in `lsp.load`.
    workers : int
    batch_size : int
        How many prompts a worker decodes together.
    cpus, gpus : float
        What a worker has of each.
    **arguments
        Those of `Generator`, and of `lsp.generate`. With GPUs the model is loaded to ``cuda`` by default.

    Returns
    -------
    ray.data.Dataset
        With the columns text, tokens, finished, passes and positions.
    """
    for name, value in (("workers", workers), ("batch_size", batch_size)):
        as_integer(name, value, 1)
    with needed_by("lsp.integrations.ray"):
        from ray.data import ActorPoolStrategy

    load = {**({"device": "cuda"} if gpus else {}), **(arguments.pop("load", None) or {})}
    given = {"threads": max(1, int(cpus)), "load": load, **arguments}
    return dataset.map_batches(  # restarts a worker that dies, as often as it takes
        Generator,
        fn_constructor_args=(model,),
        fn_constructor_kwargs=given,
        batch_size=batch_size,
        compute=ActorPoolStrategy(size=workers),
        num_cpus=cpus,
        num_gpus=gpus,
    )


def _column(values: list[Any]) -> np.ndarray:
    """A column of a batch; one of lists holds them as objects."""
    if not isinstance(values[0], list):
        return np.array(values)
    out = np.empty(len(values), dtype=object)
    out[:] = [np.array(value, dtype=np.int64) for value in values]
    return out
