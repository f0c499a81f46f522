"""What the drop-ins share: refusing what they cannot do, committing masks in a tensor of ids, decoding prompts."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lsp.decoding import Options, Scheduler, decode
from lsp.decoding.canvas import Canvas
from lsp.models.protocol import Model
from lsp_kernels import PrefixRule, TokenStats, Vocabulary, commit_prefix, select_prefix
from lsp_kernels.errors import as_integer, check_device, check_kind, check_tensor, fail_dtype, fail_shape
from lsp_kernels.rule import SUPPRESSED
from lsp_kernels.vocabulary import check_rule

EVERYTHING = PrefixRule(alpha=1.0, beta=1.0, snap=False)


def refuse_noise(temperature: Any, remasking: Any) -> None:
    """Refuses sampling: the statistics of a row are those of its logits as they are."""
    if temperature != 0:
        raise ValueError(f"Invalid temperature: expected 0, as decoding is greedy, got {temperature!r}")
    refuse_remasking(remasking)


def refuse_remasking(remasking: Any) -> None:
    if remasking != "low_confidence":
        raise ValueError(f"Invalid remasking: expected 'low_confidence', got {remasking!r}")


def check_block(logits: Tensor, x: Tensor) -> None:
    """A row of logits for every id."""
    check_tensor("logits", logits)
    check_tensor("x", x)
    if logits.dim() != 3:
        fail_shape("logits", "[B, L, V]", logits)
    if x.shape != logits.shape[:2]:
        fail_shape("x", f"{list(logits.shape[:2])} as the logits", x)
    if x.size(1) == 0:
        fail_shape("x", "at least one position", x)
    if x.dtype != torch.int64:
        fail_dtype("x", "int64", x)
    check_device("x", x, logits)


def check_padding(name: str, prompt: Tensor, attention_mask: Tensor | None) -> None:
    """Prompts of one length, or padded on the left."""
    check_tensor(name, prompt)
    if prompt.dim() != 2:
        fail_shape(name, "[B, P]", prompt)
    if prompt.is_floating_point() or prompt.dtype == torch.bool:
        fail_dtype(name, "integers", prompt)
    if attention_mask is None:
        return
    check_tensor("attention_mask", attention_mask)
    if attention_mask.shape != prompt.shape:
        fail_shape("attention_mask", f"{list(prompt.shape)} as the {name}", attention_mask)
    real = attention_mask.bool()
    if not bool((real[:, 1:] >= real[:, :-1]).all()):
        raise ValueError(
            "Invalid attention_mask: expected padding on the left only, got zeros after ones; "
            "lsp.generate takes prompts of any lengths without padding"
        )


def decoded(
    model: Model,
    prompt: Tensor,
    attention_mask: Tensor | None,
    new: int,
    scheduler: Scheduler,
    vocabulary: Vocabulary,
    options: Options,
) -> list[Canvas]:
    """Prompts [B, P], continued without their padding. Noise is seeded by torch's global generator."""
    real = torch.ones_like(prompt, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
    prompts = [row[kept].tolist() for row, kept in zip(prompt, real, strict=True)]
    seeds = torch.randint(2**63 - 1, (len(prompt),)).tolist() if options.temperature else None
    (last,) = deque(decode(model, prompts, new, scheduler, vocabulary, options, seeds), maxlen=1)
    return last.canvases


def continuation(prompt: Tensor, canvases: Sequence[Canvas], new: int, fill: int | None = None) -> Tensor:
    """Prompts as they came, but for masks in them, and what was decoded, [B, P + new].

    After a stop there is `fill`, or the stop itself.
    """
    out = torch.empty(len(prompt), prompt.size(1) + new, dtype=torch.int64)
    for row, padded, canvas in zip(out, prompt, canvases, strict=True):
        if canvas.stop is not None:
            canvas.tokens[canvas.end :] = canvas.stop if fill is None else fill
        own = torch.from_numpy(canvas.tokens)
        row[len(row) - len(own) :] = own
        row[: len(row) - len(own)] = padded[: len(row) - len(own)]
    return out


def vocabulary_for(
    given: Vocabulary | None, size: int, mask_id: int, device: torch.device, stops: tuple[int, ...] = ()
) -> Vocabulary:
    """The vocabulary given, else one with these stops; on the device, and never choosing the mask."""
    if as_integer("mask_id", mask_id, 0) >= size:
        raise ValueError(f"Invalid mask_id: expected an id from 0 to {size - 1}, got {mask_id}")
    if given is None:
        return Vocabulary(size, stops=stops, suppress=[mask_id], device=device)
    if given.size != size:
        raise ValueError(f"Invalid vocabulary: expected size V = {size}, got {given.size}")
    found = given.to(device)
    return found if int(found.flags[mask_id]) & SUPPRESSED else found.suppressing(mask_id)


def rule_for(given: PrefixRule | None, vocabulary: Vocabulary | None) -> PrefixRule:
    """The rule given, else `PrefixRule.guarded`."""
    if vocabulary is not None:
        check_kind("vocabulary", vocabulary, Vocabulary)
    rule = PrefixRule.guarded() if given is None else given
    check_rule(rule, vocabulary)
    return rule


def rule_of(given: PrefixRule | Mapping[str, Any] | None) -> PrefixRule:
    """`PrefixRule.guarded`, with the fields that a configuration file names replaced; or the rule given."""
    if isinstance(given, Mapping):
        return replace(PrefixRule.guarded(), **{str(name): value for name, value in given.items()})
    return PrefixRule.guarded() if given is None else given


def refuse_others(**given: Any) -> None:
    """Refuses what asks for another rule, or for what is not computed here; None and False ask for nothing."""
    for name, value in given.items():
        if value is not None and value is not False:
            raise ValueError(f"Invalid {name}: expected none, as the longest stable prefix decides, got {value!r}")


def chosen_prefix(stats: TokenStats, masked: Tensor, rule: PrefixRule, vocabulary: Vocabulary) -> Tensor:
    """Which positions to commit, bool [B, L]: of the masked ones of each row the longest stable prefix."""
    counts = masked.sum(1)
    borders = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int()
    rows = stats.margins[masked], stats.tokens[masked]
    lengths, _ = select_prefix(*rows, borders, rule=rule, vocabulary=vocabulary)
    refuse_nan(lengths, counts)
    return masked & (masked.cumsum(1) <= lengths[:, None])


def refuse_nan(lengths: Tensor, counts: Tensor) -> None:
    """A sequence with masks of which none can be committed has NaN at the first one."""
    if broken := ((lengths == 0) & (counts > 0)).nonzero().flatten().tolist():
        raise ValueError(f"Invalid logits: expected numbers, got NaN in sequence {broken[0]}")


class MaskedPrefix:
    """Commits the longest stable prefix of the masks of every row of ids.

    Parameters
    ----------
    mask_id : int
    rule : PrefixRule, optional
    vocabulary : Vocabulary, optional
        Delimiters, stops and suppressed ids; by default `stops` are the only thing known of it.
    stops : tuple of int
        What ends a text, without a vocabulary.
    fill : int, optional
        What the masks after a committed stop become: this id, by default the stop itself.
    """

    def __init__(
        self,
        mask_id: int,
        rule: PrefixRule | None,
        vocabulary: Vocabulary | None,
        stops: tuple[int, ...] = (),
        fill: int | None = None,
    ) -> None:
        self.mask_id = as_integer("mask_id", mask_id, 0)
        self.rule, self.stops, self.fill = rule_for(rule, vocabulary), stops, fill
        self._given = vocabulary
        self._ready: Vocabulary | None = None

    def vocabulary(self, logits: Tensor) -> Vocabulary:
        """The tables on the device of the logits, made once."""
        size, device, ready = logits.size(-1), logits.device, self._ready
        if ready is None or ready.device != device or ready.size != size:
            ready = self._ready = vocabulary_for(self._given, size, self.mask_id, device, self.stops)
        return ready

    def __call__(self, logits: Tensor, x: Tensor, *, everything: bool = False) -> Tensor:
        """The ids after the commit; `x` stays as it is. `everything` leaves no mask, whatever the rule says."""
        check_block(logits, x)
        masked = x == self.mask_id
        counts, place = masked.sum(1), masked.cumsum(1)
        tokens, lengths, finished = self._commit(logits, masked, counts, EVERYTHING if everything else self.rule)
        refuse_nan(lengths, counts)
        chosen = masked & (place <= lengths[:, None])
        stop = torch.where(masked & (place == lengths[:, None]), tokens, 0).sum(1)
        if self.fill is not None:
            stop = torch.full_like(stop, self.fill)
        out = torch.where(chosen, tokens, x)
        return torch.where(masked & ~chosen & finished[:, None], stop[:, None], out)

    def _commit(
        self, logits: Tensor, masked: Tensor, counts: Tensor, rule: PrefixRule
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens by position, lengths and finished. Masks side by side, as they are in a suffix, cost no copy."""
        vocabulary = self.vocabulary(logits)
        flags = masked.int()
        first, last = flags.argmax(1), masked.size(1) - 1 - flags.flip(1).argmax(1)
        if bool(((last - first + 1 == counts) | (counts == 0)).all()):
            commit = commit_prefix(logits, None, counts.int(), first.int(), rule=rule, vocabulary=vocabulary)
            return commit.tokens, commit.lengths, commit.finished
        borders = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int()
        commit = commit_prefix(logits[masked], borders, rule=rule, vocabulary=vocabulary)
        tokens = torch.full_like(masked, -1, dtype=torch.int64).masked_scatter(masked, commit.tokens)
        return tokens, commit.lengths, commit.finished
