"""The algorithms as SGLang takes them: subclasses of its own, chosen by ``--dllm-algorithm`` and their names."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.dllm.algorithm.base import DllmAlgorithm
from sglang.srt.dllm.algorithm.joint_threshold import JointThreshold
from sglang.srt.dllm.algorithm.low_confidence import LowConfidence
from torch import Tensor

from lsp.integrations.sglang import canvas, fused, prefix
from lsp.integrations.sglang.settings import Settings
from lsp_kernels import Vocabulary

__all__ = [
    "ALGORITHMS",
    "FusedJointThreshold",
    "FusedLowConfidence",
    "LongestStablePrefix",
    "LongestStablePrefixCanvas",
]


def blocks_of(algorithm: Any, forward_batch: Any, full_logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Views of the pass: logits [B, L, V], ids [B, L] and which of them are masks to decode [B, L]."""
    shape = forward_batch.batch_size, algorithm.block_size
    ids = forward_batch.input_ids.view(shape)
    masked = ids == algorithm.mask_id
    if forward_batch.dllm_prompt_mask is not None:
        masked &= ~forward_batch.dllm_prompt_mask
    return full_logits.view(*shape, full_logits.size(-1)), ids, masked


class LongestStablePrefix(DllmAlgorithm):
    """Commits the longest stable prefix of the masks of each block; a committed token is final.

    The settings are those of `lsp.integrations.sglang.settings.Settings`. A block is reported as done by the first pass
    that saw all of its tokens, so that the K/V which SGLang keeps are those of the tokens and not of masks.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.settings = Settings.read(config.algorithm_config)
        if self.settings.stream and not self.fdfo:
            raise ValueError("Invalid stream: expected a server with --dllm-fdfo, got one without")
        self._vocabulary: Vocabulary | None = None

    def step(self, forward_batch: Any, full_logits: Tensor, states: list[Any]) -> list[bool]:
        """One pass: writes what is committed into ``forward_batch.input_ids``, in place."""
        logits, ids, masked = blocks_of(self, forward_batch, full_logits)
        written, done = prefix.advance(logits, ids, masked, self.settings, self._vocabulary_of(logits))
        ids.copy_(written)  # in place: a captured graph keeps its address
        return done

    def _vocabulary_of(self, logits: Tensor) -> Vocabulary:
        """The tables on the device of the logits, made once."""
        if self._vocabulary is None or self._vocabulary.device != logits.device:
            self._vocabulary = self.settings.vocabulary(logits.size(-1), self.mask_id, logits.device)
        return self._vocabulary


class LongestStablePrefixCanvas(LongestStablePrefix):
    """The same for models with full attention, whose prompt and answer are one block."""

    supported_architectures = (canvas.ARCHITECTURE,)

    @classmethod
    def validate_request(cls, req: Any) -> str | None:
        """Refuses a request that does not fit into the block."""
        prompt, new = len(req.origin_input_ids), req.sampling_params.max_new_tokens
        return canvas.refusal(prompt, new, req.dllm_config.block_size)


class FusedLowConfidence(LowConfidence):
    """SGLang's ``LowConfidence``, whose confidences come from one read of the logits."""

    def step(self, forward_batch: Any, full_logits: Tensor, states: list[Any]) -> list[bool]:
        logits, ids, masked = blocks_of(self, forward_batch, full_logits)
        written, done = fused.low_confidence(logits, ids, masked, self.threshold)
        ids.copy_(written)
        out: list[bool] = done.tolist()
        return out


class FusedJointThreshold(JointThreshold):
    """SGLang's ``JointThreshold``, whose confidences come from one read of the logits; all blocks at once."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.vectorized_decoding = self._use_shared_state = False  # a state for each request

    def step(self, forward_batch: Any, full_logits: Tensor, states: list[Any]) -> list[bool]:
        logits, ids, _ = blocks_of(self, forward_batch, full_logits)
        prompt = torch.stack([state["prompt_mask"] for state in states])
        spent = [state["post_edit_steps"] >= self.max_post_edit_steps for state in states]
        resting = [state["finished"] for state in states]
        if self.penalty_lambda > 0:
            fused.penalise(logits, ids, self.penalty_lambda)
        unmasked = ~((ids == self.mask_id) & ~prompt).any(1)
        written, changed = fused.joint_threshold(
            logits,
            ids,
            prompt,
            self.mask_id,
            self.threshold,
            self.edit_threshold,
            torch.tensor(resting, device=ids.device),
            torch.tensor(spent, device=ids.device),
        )
        ids.copy_(written)
        for state, edits, writes in zip(states, *torch.stack([unmasked, changed]).tolist(), strict=True):
            if not state["finished"]:
                state["post_edit_steps"] += edits
                state["finished"] = not writes
        return [state["finished"] for state in states]


ALGORITHMS = (LongestStablePrefix, LongestStablePrefixCanvas, FusedLowConfidence, FusedJointThreshold)
