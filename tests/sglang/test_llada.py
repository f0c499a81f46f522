"""Full-attention LLaDA in SGLang, over two processes: token by token what an uncached loop on the canvas decodes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.lsp.checkpoints import Case, llada
from tests.sglang.engines import FLOOR, engine
from tests.sglang.reference import decode

pytestmark = pytest.mark.sglang

CANVAS = 32
PROMPTS = [list(range(20, 25 + 2 * i)) for i in range(8)]


class Uncached:
    """LLaDA, written plainly, on the whole canvas."""

    block_size = CANVAS

    def __init__(self, case: Case) -> None:
        self.case = case

    def __call__(self, ids: list[int]) -> Tensor:
        return self.case.logits(ids, torch.float64)


def test_eight_requests_at_once_get_the_tokens_of_an_uncached_loop(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = llada()
    lengths = [CANVAS - len(prompt) for prompt in PROMPTS]
    mask = case.config["mask_token_id"]
    answers = [
        decode(Uncached(case), prompt, new, FLOOR, set(), mask=mask)
        for prompt, new in zip(PROMPTS, lengths, strict=True)
    ]
    assert len({token for answer in answers for token in answer.tokens}) > 40
    monkeypatch.setenv("SGLANG_EXTERNAL_MODEL_PACKAGE", "lsp.integrations.sglang.models")
    folder = tmp_path_factory.mktemp("llada")
    settings = {"checkpoint": case.save, "block_size": CANVAS, "ranks": 2}
    with engine(folder, "LongestStablePrefixCanvas", **settings) as found:
        sampling = [{"max_new_tokens": new, "ignore_eos": True} for new in lengths]
        out = found.generate(input_ids=PROMPTS, sampling_params=sampling)
        assert [list(answer["output_ids"]) for answer in out] == [answer.tokens for answer in answers]
        with pytest.raises(ValueError, match=r"Invalid max_new_tokens: expected at most 27 .* got 28"):
            found.generate(input_ids=PROMPTS[0], sampling_params={"max_new_tokens": 28})
