"""The YAML file of ``--dllm-algorithm-config`` as the settings of a longest stable prefix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch

from lsp.integrations._common import rule_of, vocabulary_for
from lsp.schedulers.prefix import AUTO, LongestStablePrefix
from lsp_kernels import PrefixRule, Vocabulary
from lsp_kernels.vocabulary import check_rule

ENGINE_KEYS = ("block_size",)  # read by SGLang itself, from the same file


@dataclass(frozen=True)
class Settings:
    """What a block is decoded with.

    Parameters
    ----------
    rule : mapping or PrefixRule, optional
        Fields of `PrefixRule` that differ from `PrefixRule.guarded`.
    islands, stuck
        As in `lsp.LongestStablePrefix`, but by default the floor and ``"first"``. Margins do not fade.
    delimiters : iterable of int
        Ids at which a commit ends, for a rule that snaps.
    stops : iterable of int
        Ids that end a text. What follows one in its block is filled up with it, so that the block is complete.
    stream : bool
        Whether to send committed tokens before their block is complete; needs ``--dllm-fdfo``.

    Examples
    --------
    >>> settings = Settings.read({"rule": {"floor": 2.0}, "stops": [9], "block_size": 32})
    >>> settings.rule.floor, settings.islands, settings.stops
    (2.0, 2.0, (9,))
    """

    rule: Any = None
    islands: float | None = AUTO
    stuck: Literal["first", "best"] = "first"
    delimiters: Iterable[int] = ()
    stops: Iterable[int] = ()
    stream: bool = False

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Settings:
        """The settings of a file; refuses keys that nobody reads."""
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known and name not in ENGINE_KEYS:
                raise ValueError(f"Invalid algorithm config: expected keys of {[*known, *ENGINE_KEYS]}, got {name!r}")
        return cls(**{name: value for name, value in given.items() if name in known})

    def __post_init__(self) -> None:
        if isinstance(self.rule, Mapping):
            known = [field.name for field in fields(PrefixRule) if field.init]
            for name in self.rule:
                if name not in known:
                    raise ValueError(f"Invalid rule: expected keys of {known}, got {name!r}")
        elif self.rule is not None and not isinstance(self.rule, PrefixRule):
            raise TypeError(f"Invalid rule: expected a mapping, got {self.rule!r}")
        if not isinstance(self.stream, bool):
            raise TypeError(f"Invalid stream: expected true or false, got {self.stream!r}")
        rule = rule_of(self.rule)
        islands = rule.floor if self.islands is AUTO and rule.beta == 1 else self.islands
        checked = LongestStablePrefix(rule, islands, self.stuck, fade=0.0)  # refuses what does not go together
        ids = {name: _ids(name, getattr(self, name)) for name in ("delimiters", "stops")}
        for name, value in {"rule": rule, "islands": checked.islands, **ids}.items():
            object.__setattr__(self, name, value)
        last = max((*ids["delimiters"], *ids["stops"]), default=0)
        check_rule(rule, Vocabulary(last + 1, ids["delimiters"], ids["stops"]))

    def vocabulary(self, size: int, mask_id: int, device: torch.device) -> Vocabulary:
        """The tables of a vocabulary of this size, in which the mask is never chosen."""
        return vocabulary_for(Vocabulary(size, self.delimiters, self.stops), size, mask_id, device)


def _ids(name: str, given: Any) -> tuple[int, ...]:
    """A list of a YAML file: ids, or nothing."""
    values = () if given is None else given
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise TypeError(f"Invalid {name}: expected a list of ids, got {given!r}")
    found = tuple(values)
    if not all(isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in found):
        raise TypeError(f"Invalid {name}: expected a list of ids, got {given!r}")
    return found
