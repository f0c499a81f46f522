"""What lm-eval asks: which requests are padding, what a task wants of generation, values that come as text.

Needs the extra ``eval``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from lsp.extras import needed_by
from lsp_kernels.errors import as_integer

with needed_by("an evaluation"):
    from lm_eval.models.utils import normalize_gen_kwargs

LENGTH = 256
"""How many masks follow a prompt if neither the model nor the task says so; as in lm-eval."""

GENERATION = ("until", "max_gen_toks", "do_sample", "temperature")
FOR_SAMPLING = ("top_p", "top_k", "min_p")  # change nothing without a temperature
Answer = TypeVar("Answer")


def without_padding(requests: Sequence[Any]) -> dict[int, int]:
    """The places of the requests that are meant, and which of its repeats each is.

    With several processes lm-eval appends the last request once more to those that have fewer documents, so that all
    are equally long. Nothing here waits for the others within a pass, so that one need not be computed.
    """
    seen: Counter[int] = Counter()
    out: dict[int, int] = {}
    for place, request in enumerate(requests):
        copy, seen[id(request)] = seen[id(request)], seen[id(request)] + 1
        if copy < (request.repeats or 1):
            out[place] = copy
    return out


def with_padding(requests: Sequence[Any], answers: Mapping[int, Answer]) -> list[Answer]:
    """An answer for every request; padding gets that of the request that it repeats."""
    known = {id(requests[place]): answer for place, answer in answers.items()}
    return [answers[place] if place in answers else known[id(request)] for place, request in enumerate(requests)]


class How(NamedTuple):
    """How an answer is to be decoded. Requests that agree in it are decoded in one call.

    Attributes
    ----------
    max_new_tokens : int
    stops : tuple of str
        What ends the text.
    stop_ids : tuple of int
        Stops that are special tokens, which never show in the text.
    temperature : float
    """

    max_new_tokens: int
    stops: tuple[str, ...]
    stop_ids: tuple[int, ...]
    temperature: float


def how_asked(
    arguments: Mapping[str, Any], tokenizer: Any, max_new_tokens: int | None = None, more_stops: Sequence[str] = ()
) -> How:
    """What a task's generation arguments ask for; `max_new_tokens` replaces theirs."""
    given = normalize_gen_kwargs(dict(arguments), LENGTH)
    temperature = float(given.get("temperature", 0.0))
    if temperature < 0:
        raise ValueError(f"Invalid temperature: expected at least 0, got {temperature}")
    known = GENERATION if temperature else (*GENERATION, *FOR_SAMPLING)
    if unknown := [name for name in given if name not in known]:
        expected = f"{', '.join(GENERATION[:-1])} or {GENERATION[-1]}"
        raise ValueError(f"Invalid generation argument: expected {expected}, got {unknown[0]}")
    stops = [stop for stop in (*given["until"], *more_stops) if stop]
    special = {stop: token for stop in stops if (token := _special(stop, tokenizer)) is not None}
    return How(
        max_new_tokens or as_integer("max_gen_toks", given["max_gen_toks"], 1),
        tuple(stop for stop in stops if stop not in special),
        tuple(sorted(set(special.values()))),
        temperature,
    )


def _special(stop: str, tokenizer: Any) -> int | None:
    """The id of a stop that is the name of a special token. (What a tokenizer does not know may become one too.)"""
    ids: list[int] = tokenizer(stop, add_special_tokens=False)["input_ids"]
    if len(ids) != 1 or tokenizer.convert_ids_to_tokens(ids[0]) != stop:
        return None
    return None if tokenizer.decode(ids, skip_special_tokens=True) else ids[0]


def as_batch_size(value: int | str) -> int:
    """lm-eval hands it over as text."""
    try:
        return as_integer("batch_size", int(value) if isinstance(value, str) else value, 1)
    except ValueError:
        raise ValueError(f"Invalid batch_size: expected an integer of at least 1, got {value!r}") from None


def in_text(value: Any) -> str:
    """A value that lm-eval has parsed, as `lsp.cli.settings` reads it."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
