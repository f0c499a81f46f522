"""Decoding once more, in plain Python: one sequence, one pass after the other, no packing, no cache, no shortcuts.

Shares no code with `lsp`. A model is a function from the ids of a sequence to a row of logits per position, computed
anew in every pass; which positions a cached pass would cover, and which pass would freeze a token, is kept as numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from lsp import schedulers
from tests import oracle

Rows = Sequence[Sequence[float]]


class Ambiguous(Exception):
    """Two numbers are too close for float32 to say which is larger."""


@dataclass
class Pass:
    """What one pass covered, what of it is frozen from then on, and what it committed.

    `end` is where the sequence ends that a model is given which cannot leave out masks.
    """

    start: int
    end: int
    append: int
    anew: bool
    chosen: dict[int, int]
    positions: list[int]


@dataclass
class Simulation:
    tokens: list[int]
    passes: list[Pass]
    slots: list[dict[int, tuple[int, int]]] = field(default_factory=list)
    """After each pass: which pass froze which token, by position."""


def simulate(
    model: Callable[[list[int]], Rows],
    prompt: Sequence[int],
    new: int,
    scheduler: object,
    *,
    mask: int,
    shifted: bool = False,
    stops: Sequence[int] = (),
    delimiters: Sequence[int] = (),
    block_length: int | None = None,
    blocks: str = "fixed",
    delimiter_confidence: float = 0.3,
    lookahead: int | None = None,
    cache: str = "prefix",
    recompute: int = 0,
    refresh_every: int | None = None,
    refresh_scattered: bool = False,
    stop_early: bool = True,
    temperature: float = 0.0,
    seed: int = 0,
    rule: Rule | None = None,
) -> Simulation:
    """Decodes one prompt, in which `mask` is a hole.

    `rule` says which positions the scheduler commits, by default the one of `RULES`.
    """
    rule = RULES[type(scheduler)] if rule is None else rule
    tokens: list[int | None] = [*(None if token == mask else token for token in prompt), *[None] * new]  # None: a mask
    masks = tokens.count(None)
    begin = tokens.index(None) if masks else len(tokens)
    given = [p for p, token in enumerate(tokens) if token is not None]
    tail = max(given, default=-1) + 1  # no given token from here on
    ends = set(stops) if stop_early else set()
    out = Simulation([], [])
    slots: dict[int, tuple[int, int]] = {}
    earlier: list[dict[int, list[float]]] = []
    block_start = block_end = block_before = -1
    scattered = False
    while None in tokens:
        index, first = len(out.passes), tokens.index(None)
        window = int(0.25 * masks)
        settled = blocks != "delimiter" or block_start <= first < block_end
        if not block_length:
            block_start, block_end = begin, len(tokens)
        elif blocks == "sliding":
            block_start, block_end = first, first + block_length
        elif blocks == "growing":
            open_ = [p for p, token in enumerate(tokens) if token is None][:block_length]
            block_start, block_end = first, open_[-1] + 1 if len(open_) == block_length else len(tokens)
        elif blocks == "fixed":
            block_start = first - (first - begin) % block_length
            block_end = block_start + block_length
        elif not settled:
            block_start, block_end = first, first + max(block_length, window)  # at most, until the pass has said it
        block_end = min(len(tokens), block_end)
        end = len(tokens)
        if lookahead is not None:
            end = min(end, (block_end if block_length else first) + lookahead)

        exact = cache == "none" or refresh_every == 1
        anew = exact or (refresh_every is not None and index % refresh_every == 0) or (refresh_scattered and scattered)
        if cache == "block":
            anew = block_start != block_before
        block_before = block_start
        if anew:
            slots = {}
        frozen = len(slots)
        # The front is the committed run after the frozen prefix. With shifted logits its last token predicts the mask.
        front_end = (block_start if cache == "block" else first) - (1 if shifted else 0)
        append = 0 if exact else max(0, front_end - recompute - frozen)

        positions = [*range(frozen, end), *(p for p in given if end <= p < len(tokens))]
        rows = model([mask if token is None else token for token in tokens[: positions[-1] + 1]])
        logits = {p: list(map(float, rows[p - 1 if shifted else p])) for p in range(end) if tokens[p] is None}
        noise = {
            p: oracle.Draw(float(np.float32(temperature)), seed, p, index) if temperature else None for p in logits
        }
        scored = {p: oracle.score_row(logits[p], {mask}, noise[p]) for p in logits}
        if temperature:
            check_that_noise_decides(scored, temperature, scheduler)
        if not settled:
            ends_here = [p for p in scored if p < block_start + window and scored[p].token in set(delimiters)]
            length = delimited(ends_here, scored, logits, delimiter_confidence)
            block_end = min(len(tokens), block_start + block_length if length is None else length)
        here = [p for p in scored if p < block_end]
        left = tokens.count(None)
        seen = Seen(scored, here, (masks - left) / masks, len(tokens), set(delimiters), ends, logits, mask, earlier)
        chosen = {p: scored[p].token for p in sorted(rule(scheduler, seen))}
        earlier = [logits, *earlier]
        for p in range(frozen, frozen + append):
            slots = slots | {p: (index, tokens[p])}
        out.passes.append(Pass(frozen, positions[-1] + 1, append, anew, chosen, positions))
        out.slots.append(slots)
        for p, token in chosen.items():
            tokens[p] = token
        stop = [p for p, token in chosen.items() if token in ends]
        if stop:
            tokens = tokens[: max(tail, min(stop) + 1)]
        left_open = tokens.index(None) if None in tokens else len(tokens)
        last = min([len(tokens), *(p for p in stop if p >= tail)])
        scattered = any(left_open < p < last for p in chosen)
    out.tokens = [token for token in tokens[begin:] if token is not None]
    return out


def delimited(
    places: list[int], rows: dict[int, oracle.Row], logits: dict[int, list[float]], enough: float
) -> int | None:
    """Where the block ends whose window predicts delimiters at these places; None if none of them is sure enough."""
    if not places:
        return None
    best = max(places, key=lambda p: (rows[p].log_odds, -p))
    for p in places:
        if (
            p != best
            and abs(rows[p].log_odds - rows[best].log_odds) < 2e-5
            and (logits[p], rows[p].token) != (logits[best], rows[best].token)
        ):
            raise Ambiguous
    return best + 1 if reaches(1 / (1 + math.exp(-rows[best].log_odds)), enough) else None


def check_that_noise_decides(rows: dict[int, oracle.Row], temperature: float, scheduler: Any) -> None:
    """Raises `Ambiguous` where the tolerance of noise may change a token or the order of two margins or bounds."""
    bounds = [getattr(scheduler, "islands", None), getattr(getattr(scheduler, "rule", None), "floor", None)]
    margins = fading([rows[p].margin for p in sorted(rows)], getattr(scheduler, "fade", 0.0))
    values = sorted([0.0, *margins, *(bound for bound in bounds if bound)])
    tolerance = 4 * 2**-20 * (max(abs(row.top1) for row in rows.values()) + 24 * temperature)
    if any(0 < b - a < tolerance for a, b in pairwise(values)):
        raise Ambiguous


def seated(passes: Sequence[int], seats: int) -> list[list[tuple[int, int]]]:
    """For each prompt, which passes of the loop go over it and in which seat, if it needs this many passes."""
    out = [[(index, b) for index in range(n)] if b < seats else [] for b, n in enumerate(passes)]
    waiting = [b for b, n in enumerate(passes) if n and b >= seats]
    free_from = list(passes[:seats])  # the first pass for which a seat is free
    while waiting:
        begin = min(free_from)
        seat, b = free_from.index(begin), waiting.pop(0)
        out[b] = [(index, seat) for index in range(begin, begin + passes[b])]
        free_from[seat] = begin + passes[b]
    return out


@dataclass
class Seen:
    """What a scheduler may look at in a pass of the simulation.

    Attributes
    ----------
    rows : dict
        Every mask of the pass: token, margin and log-odds, by position.
    here : list of int
        The masks that may be committed.
    done : float
        The share of the masks that are committed already.
    end : int
        Where the sequence ends.
    delimiters, stops : sets of int
    earlier : list of dict
        The logits of every mask in the passes before this one, the last one first.
    """

    rows: dict[int, oracle.Row]
    here: list[int]
    done: float
    end: int
    delimiters: set[int]
    stops: set[int]
    logits: dict[int, list[float]]  # the same values in another order may round to other log-odds in float32
    mask: int
    earlier: list[dict[int, list[float]]]

    @property
    def margins(self) -> list[float]:
        return [self.rows[p].margin for p in self.here]

    @property
    def ranked(self) -> list[int]:
        """The most confident first, ties to the left."""
        rows = self.rows
        ranked = sorted(self.here, key=lambda p: (-rows[p].log_odds, p))
        for p, q in pairwise(ranked):
            if abs(rows[p].log_odds - rows[q].log_odds) < 2e-5 and not self.alike(p, q):
                raise Ambiguous
        return ranked

    def alike(self, p: int, q: int) -> bool:
        """Whether float32 gives both rows the same statistics: they are summed around the token that is drawn."""
        return self.logits[p] == self.logits[q] and self.rows[p].token == self.rows[q].token

    def confidence(self, position: int) -> float:
        """The softmax probability of the token, without noise."""
        return 1 / (1 + math.exp(-self.rows[position].log_odds))

    def best_before(self, position: int, passes: int) -> list[int]:
        """The best tokens of a position, without noise, in so many passes before this one that had it as a mask."""
        known = [logits[position] for logits in self.earlier[:passes] if position in logits]
        return [oracle.score_row(logits, {self.mask}).token for logits in known]


def longest_stable_prefix(scheduler: schedulers.LongestStablePrefix, seen: Seen) -> set[int]:
    tokens = [seen.rows[p].token for p in seen.here]
    before = scheduler.stable - 1
    counts = [seen.best_before(p, before) == [seen.rows[p].token] * before for p in seen.here]
    faded = dict(zip(seen.here, fading(seen.margins, scheduler.fade), strict=True))
    margins = [faded[p] if counted else -math.inf for p, counted in zip(seen.here, counts, strict=True)]
    length, _ = oracle.select(margins, tokens, scheduler.rule, seen.delimiters, seen.stops)
    taken = set(seen.here[:length])
    level = None if scheduler.islands is None else np.float32(scheduler.islands)
    sure = {p for p, margin in zip(seen.here, margins, strict=True) if level is not None and margin >= level}
    if scheduler.rule.floor is not None and margins[0] < np.float32(scheduler.rule.floor):
        if sure:
            taken = sure
        elif scheduler.stuck == "best":
            taken = {max(seen.here, key=lambda p: (faded[p], -p))}
    return taken | {p for p in sure if seen.rows[p].token in seen.stops}


def fading(margins: Sequence[float], fade: float) -> list[float]:
    """Each margin less `fade` for every mask before it, down to 0, in float32."""
    step = np.float32(fade)
    return [float(max(np.float32(0), np.float32(m) - step * np.float32(i))) for i, m in enumerate(margins)]


def scattered_margin(scheduler: schedulers.ScatteredMargin, seen: Seen) -> set[int]:
    length = oracle.candidate_length(seen.margins, scheduler.rule)
    return set(sorted(seen.here, key=lambda p: (-seen.rows[p].margin, p))[:length])


def prophet(scheduler: schedulers.Prophet, seen: Seen) -> set[int]:
    looked_at = [seen.rows[p].margin for p in seen.rows if scheduler.region is None or p >= seen.end - scheduler.region]
    enough = scheduler.thresholds[0 if seen.done < 1 / 3 else 1 if seen.done < 2 / 3 else 2]
    everything = bool(looked_at) and reaches(math.fsum(looked_at) / len(looked_at), enough)
    return set(seen.rows) if everything else {seen.ranked[0]}


def threshold(scheduler: schedulers.Threshold, seen: Seen) -> set[int]:
    best, *others = seen.ranked
    return {best, *(p for p in others if reaches(seen.confidence(p), scheduler.p))}


def factor(scheduler: schedulers.Factor, seen: Seen) -> set[int]:
    best, *others = seen.ranked
    taken = {best}
    for n, p in enumerate(others, start=2):
        if not reaches(seen.confidence(p), 1 - scheduler.f / (n + 1)) and n <= len(others):
            break  # the last one is taken whenever it is reached
        taken.add(p)
    return taken


def less(scheduler: schedulers.Less, seen: Seen) -> set[int]:
    best, *_ = seen.ranked
    before = scheduler.passes - 1
    same = {p for p in seen.here if seen.best_before(p, before) == [seen.rows[p].token] * before}
    return {p for p in same if reaches(seen.confidence(p), scheduler.p)} or {best}


def probabilities(logits: list[float], mask: int) -> list[float]:
    weights = [0.0 if i == mask else math.exp(z - max(logits)) for i, z in enumerate(logits)]
    return [weight / math.fsum(weights) for weight in weights]


def kl(now: list[float], then: list[float], mask: int) -> float:
    """Of two rows of logits, by its definition."""
    p, q = probabilities(now, mask), probabilities(then, mask)
    return math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def klass(scheduler: schedulers.Klass, seen: Seen) -> set[int]:
    best, *_ = seen.ranked
    passes = [seen.logits, *seen.earlier][: scheduler.passes + 1]
    taken = set()
    for p in seen.here:
        known = [logits[p] for logits in passes if p in logits]
        moved = [kl(now, then, seen.mask) for now, then in pairwise(known)]
        if any(abs(each - scheduler.kl) < 1e-5 for each in moved):
            raise Ambiguous
        if len(moved) == scheduler.passes and max(moved) < scheduler.kl and reaches(seen.confidence(p), scheduler.p):
            taken.add(p)
    return taken or {best}


def within_entropy(scheduler: schedulers.EntropyBound, seen: Seen) -> set[int]:
    entropy = {p: seen.rows[p].entropy for p in seen.here}
    ranked = sorted(seen.here, key=lambda p: (entropy[p], p))
    for p, q in pairwise(ranked):
        if abs(entropy[p] - entropy[q]) < 1e-4 and not seen.alike(p, q):
            raise Ambiguous
    taken = {ranked[0]}
    for n in range(2, len(ranked) + 1):
        first = [entropy[p] for p in ranked[:n]]
        if math.isclose(sum(first) - max(first), scheduler.gamma, abs_tol=1e-4):
            raise Ambiguous
        if sum(first) - max(first) > scheduler.gamma:
            break
        taken |= set(ranked[:n])
    return taken


Rule = Callable[[Any, Seen], set[int]]
RULES: dict[type, Rule] = {
    schedulers.LongestStablePrefix: longest_stable_prefix,
    schedulers.FixedPrefix: lambda scheduler, seen: set(seen.here[: scheduler.k]),
    schedulers.ScatteredMargin: scattered_margin,
    schedulers.Prophet: prophet,
    schedulers.Full: lambda scheduler, seen: {seen.ranked[0]},
    schedulers.TopK: lambda scheduler, seen: set(seen.ranked[: scheduler.k]),
    schedulers.Threshold: threshold,
    schedulers.Factor: factor,
    schedulers.Less: less,
    schedulers.Klass: klass,
    schedulers.EntropyBound: within_entropy,
}
"""Which positions each scheduler commits, written once more and plainly."""


def reaches(value: float, bound: float) -> bool:
    if value != bound and abs(value - bound) < 1e-5 * max(1.0, abs(bound)):
        raise Ambiguous
    return value >= bound


def script(seed: int, size: int, mask: int, *, ties: bool = False) -> Callable[[list[int]], np.ndarray]:
    """A model whose logits depend on every token that it sees, and which likes to predict the mask."""

    def rows(ids: list[int]) -> np.ndarray:
        rng = np.random.default_rng([seed, len(ids), *ids])
        z = rng.normal(size=(len(ids), size)) * rng.choice([0.3, 2.0, 6.0], size=(len(ids), 1))
        z[:, mask] += 4
        if ties:
            z = np.round(z)
            z[rng.random(len(ids)) < 0.3] = z[0]  # rows that are the same, to be told apart by their place
        return z.astype(np.float32)

    return rows
