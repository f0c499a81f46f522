"""A `RemaskingPolicy` for vLLM's dllm-plugin, which commits the longest stable prefix of a block in each step.

The plugin's contract lets a step commit a part of the block. So the committed prefix leaves the block, the rest of the
draft moves up, and new masks follow: the block slides over the text, and every step commits something.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from lsp.integrations._common import MaskedPrefix
from lsp_kernels import PrefixRule, Vocabulary
from lsp_kernels.errors import as_integer, check_tensor, fail_shape

__all__ = ["PrefixRemaskingPolicy"]


class PrefixRemaskingPolicy:
    """Commits the longest stable prefix, where the plugin's own policy commits whole blocks.

    Parameters
    ----------
    mask_token_id : int
        Of the model. ``remasking_config["mask_token_id"]`` replaces it in a step.
    stops : sequence of int
        Ids that end a text; nothing is committed after one.
    rule : PrefixRule, optional
        By default `PrefixRule.guarded`.
    vocabulary : Vocabulary, optional
        Delimiters and stops, in place of `stops`.

    Notes
    -----
    Decoding is greedy. Other keys of ``remasking_config``, such as the plugin's own ``commit_confidence_threshold``,
    ask for another rule and are refused; ``denoise_steps`` and ``denoise_step_index`` play no part.
    """

    def __init__(
        self,
        mask_token_id: int,
        *,
        stops: Sequence[int] = (),
        rule: PrefixRule | None = None,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        self.stops = (
            tuple(as_integer("stops", stop, 0) for stop in stops) if vocabulary is None else vocabulary.stop_ids
        )
        self._arguments = rule, vocabulary, tuple(self.stops)
        self._prefixes: dict[int, MaskedPrefix] = {}
        self.mask_token_id = mask_token_id
        self._prefix(mask_token_id)  # checks the arguments

    def apply(
        self, *, input_draft: Sequence[int], logits: Any = None, remasking_config: Mapping[str, Any] | None = None
    ) -> Any:
        """One step: `logits` [len(input_draft), V] of a draft; returns the plugin's `RemaskStepResult`."""
        base = import_module("vllm_dllm_plugin.remasking.base")
        prefix = self._prefix(_mask_token_id(remasking_config, self.mask_token_id))
        rows = _rows(logits, len(input_draft))
        draft = torch.tensor(list(input_draft), device=rows.device)[None]
        ids = self._step(prefix, draft, rows)
        count = ids.index(prefix.mask_id) if prefix.mask_id in ids else len(ids)
        result = base.RemaskStepResult(tuple(ids[:count]), (*ids[count:], *[prefix.mask_id] * count))
        base.validate_remask_step_result(result)
        return result

    def _step(self, prefix: MaskedPrefix, draft: Tensor, rows: Tensor) -> list[int]:
        """The draft with what this step commits; what follows a committed stop is masks again."""
        ids: list[int] = prefix(rows[None], draft)[0].tolist()
        first = next((i for i, token in enumerate(ids) if token in self.stops), None)
        if first is None or prefix.mask_id in ids[:first]:
            return ids
        return ids[: first + 1] + [prefix.mask_id] * (len(ids) - first - 1)

    def _prefix(self, mask_id: int) -> MaskedPrefix:
        if mask_id not in self._prefixes:
            rule, vocabulary, stops = self._arguments
            self._prefixes[mask_id] = MaskedPrefix(mask_id, rule, vocabulary, stops)
        return self._prefixes[mask_id]


def _mask_token_id(config: Mapping[str, Any] | None, usual: int) -> int:
    given = dict(config or {})
    for ignored in ("denoise_steps", "denoise_step_index"):
        given.pop(ignored, None)
    mask_id = as_integer("mask_token_id", given.pop("mask_token_id", usual), 0)
    if given:
        raise ValueError(f"Invalid remasking_config: expected mask_token_id alone, got {sorted(given)}")
    return mask_id


def _rows(logits: Any, length: int) -> Tensor:
    """The logits of a block as a tensor; the contract allows nested sequences too."""
    if logits is None:
        raise ValueError("Invalid logits: expected those of the block, got None; only the last pipeline rank has them")
    rows = logits if isinstance(logits, Tensor) else torch.tensor(logits)
    check_tensor("logits", rows)
    if rows.dim() != 2 or len(rows) != length:
        fail_shape("logits", f"[{length}, V], a row for each id of the draft", rows)
    return rows
