"""A plug-in with an algorithm that is wrong on purpose: the tests of the engine have to notice it."""

from __future__ import annotations


def register() -> None:
    from sglang.srt.dllm.algorithm import algo_name_to_cls

    from lsp.integrations.sglang.algorithms import LongestStablePrefix

    class DoneTooEarly(LongestStablePrefix):
        """Reports a block as done in the pass that fills its last mask, before its K/V are those of its tokens."""

        def step(self, forward_batch, full_logits, states):
            super().step(forward_batch, full_logits, states)
            ids = forward_batch.input_ids.view(-1, self.block_size)
            return (ids != self.mask_id).all(1).tolist()

    algo_name_to_cls["DoneTooEarly"] = DoneTooEarly
