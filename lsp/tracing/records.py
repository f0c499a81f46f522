"""The contents of a trace. Its file is `lsp.tracing.storage`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RuleRecord:
    """The selection rule on one step, by the names of the paper. Lengths count masks from the first one.

    Attributes
    ----------
    n : int
        N, the masks that may be committed now; `margins` and `tokens` of the step begin with theirs.
    lo, hi : int
        The target range of the candidate.
    prefix_min : list of float
        The prefix minimum of the margins of the scored rows, rounded as they are.
    tau : float or None
        The threshold whose run the candidate is: the floor, or the minimum that follows; without a floor None where the
        run is cut at `hi`.
    candidate : int
        L', before snapping.
    window : int or None
        W, how far back from the candidate's end a delimiter may lie; None if the rule does not snap.
    snap : int or None
        Where the last delimiter in the window ends; None without one.
    length : int
        L.
    stopped : bool
        Whether the committed tokens end with a stop.
    """

    n: int
    lo: int
    hi: int
    prefix_min: list[float | None]
    tau: float | None
    candidate: int
    window: int | None
    snap: int | None
    length: int
    stopped: bool


@dataclass(frozen=True)
class PassRecord:
    """One pass over one sequence. Positions count from the first token of the prompt. Numbers are rounded down.

    Attributes
    ----------
    index : int
        The number of passes before.
    frozen, begin, end : int
        Tokens at the left end that the cache held, and the positions that the pass covered. Given tokens from `end` on
        were in it too.
    masks : list of int
        The positions that might be committed: those of the current block.
    masks_in_pass : list of int
        The positions of all masks of the pass; `masks` come first.
    tokens, margins, confidence : lists
        For each of `masks_in_pass`: its best token, the margin to the next one to three significant digits (None if
        infinite), less what it fades, its probability to four decimals. Where the model gave no number, both are None.
    chosen, written : lists of int
        The positions that were committed, and the tokens written there.
    reason : str
        Why, in the words of the scheduler; may be empty.
    rule : RuleRecord or None
        For schedulers that commit by the rule.
    """

    index: int
    frozen: int
    begin: int
    end: int
    masks: list[int]
    masks_in_pass: list[int]
    tokens: list[int]
    margins: list[float | None]
    confidence: list[float | None]
    chosen: list[int]
    written: list[int]
    reason: str
    rule: RuleRecord | None


@dataclass(frozen=True)
class Trace:
    """All steps of one sequence, and what is needed to show them.

    Attributes
    ----------
    scheduler, options
        What decoded it: the scheduler as Python writes it, the options of the loop by name.
    name, notes : str, list of str
        The same in words, for a heading.
    measure, level : str, float or None
        What the scheduler goes by, ``"margin"`` or ``"confidence"``, and the value that it asks for, if it is constant.
    islands : float or None
        The margin of stable islands.
    prompt, tokens : lists of int
        The ids before and from the first mask on; `tokens` ends with a stop or where the masks ended.
    text, finished, passes, positions, committed_in
        As in `lsp.Generation`. A run that was stopped in `lsp play` has no `text`; masks that are left have the token
        -1 and, in `committed_in`, the number of passes.
    max_new_tokens : int
        How many positions there were from the first mask on, which are masks but for given tokens in a prompt.
    pieces : dict
        The text of every id that appears; empty without a tokenizer.
    delimiters, stops : lists of int
        Those of the ids that appear.
    steps : list of PassRecord
    verdict : str or None
        ``"right"`` or ``"wrong"`` if the prompt was a problem of a task whose answers can be judged.
    seed : int or None
        Seed of the noise of this prompt, which makes a difference with a temperature; None in older files.
    fade : float
        How much less the recorded margins are for every mask before theirs.
    """

    scheduler: str
    options: dict[str, Any]
    name: str
    notes: list[str]
    measure: str
    level: float | None
    islands: float | None
    prompt: list[int]
    tokens: list[int]
    text: str | None
    finished: bool
    passes: int
    positions: int
    committed_in: list[int]
    max_new_tokens: int
    pieces: dict[int, str]
    delimiters: list[int]
    stops: list[int]
    steps: list[PassRecord]
    verdict: str | None = None
    seed: int | None = None
    fade: float = 0.0

    def save(self, path: str | Path) -> None:
        """Writes JSON lines: what concerns the whole first, then one line a pass."""
        from lsp.tracing import storage

        storage.save(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Reads what `save` wrote, also in the two older formats."""
        from lsp.tracing import storage

        return storage.load(path)
