"""SGLang itself, on a CPU with a tiny random SDAR, answers token by token what the reference says.

Eight requests of different lengths are decoded at the same time, so blocks in one batch are at different passes. An
algorithm that reports a block as done one pass early is noticed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.sglang.checkpoint import Plain
from tests.sglang.engines import BLOCK, FLOOR, engine, pieces, together
from tests.sglang.reference import Answer, decode

pytestmark = pytest.mark.sglang

PROMPTS = [[(37 * i + 11 * j) % 150000 for j in range(3 + 3 * i)] for i in range(8)]
LENGTHS = [12 + 2 * i for i in range(8)]


@pytest.fixture(scope="module")
def answers() -> list[Answer]:
    model = Plain(BLOCK)
    found = [decode(model, prompt, new, FLOOR, set()) for prompt, new in zip(PROMPTS, LENGTHS, strict=True)]
    assert len({token for answer in found for token in answer.tokens}) > 40  # a model with something to say
    assert sum(answer.islands for answer in found) > 20
    assert any(len(answer.runs) > len(answer.tokens) / 2 for answer in found)
    return found


@pytest.fixture(scope="module")
def streaming(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with engine(tmp_path_factory.mktemp("one"), "LongestStablePrefix", stream=True) as found:
        yield found


def sampling(new: int) -> dict[str, Any]:
    return {"max_new_tokens": new, "ignore_eos": True}


def generated(found: Any) -> list[list[int]]:
    out = found.generate(input_ids=PROMPTS, sampling_params=[sampling(new) for new in LENGTHS])
    return [list(answer["output_ids"]) for answer in out]


def test_eight_requests_at_once_get_the_tokens_of_the_reference(streaming: Any, answers: list[Answer]) -> None:
    assert generated(streaming) == [answer.tokens for answer in answers]


def test_committed_tokens_are_sent_before_their_block_is_complete(streaming: Any, answers: list[Answer]) -> None:
    clients = [pieces(streaming, prompt, sampling(new)) for prompt, new in zip(PROMPTS, LENGTHS, strict=True)]
    for received, answer in zip(together(streaming, *clients), answers, strict=True):
        assert received[-1] == answer.tokens
        for piece in received:
            assert piece == answer.tokens[: len(piece)]
            assert len(piece) in {0, len(answer.tokens), *answer.runs}
        assert {len(piece) for piece in received} >= set(answer.runs)  # nothing that is final waits
    sizes = {run for answer in answers for run in answer.runs}
    assert any(size % BLOCK for size in sizes)


def test_a_client_that_leaves_does_not_disturb_the_others(streaming: Any, answers: list[Answer]) -> None:
    async def leaves() -> list[int]:
        stream = await streaming.async_generate(
            input_ids=PROMPTS[7], sampling_params=sampling(400), stream=True, rid="leaves"
        )
        async for piece in stream:
            if piece["output_ids"]:
                streaming.tokenizer_manager.abort_request(rid="leaves")
                return list(piece["output_ids"])
        raise AssertionError("nothing came")

    others = [pieces(streaming, prompt, sampling(new)) for prompt, new in zip(PROMPTS[:7], LENGTHS[:7], strict=True)]
    left, *stayed = together(streaming, leaves(), *others)
    assert left == answers[7].tokens[: len(left)]
    assert [received[-1] for received in stayed] == [answer.tokens for answer in answers[:7]]
    assert generated(streaming) == [answer.tokens for answer in answers]  # and its place is free again


def test_a_stop_ends_the_text_and_its_block(tmp_path_factory: pytest.TempPathFactory, answers: list[Answer]) -> None:
    """Two processes that share the model, and batches that wait for their slowest block."""
    stops = sorted({answer.tokens[len(answer.tokens) // 2] for answer in answers[::2]})
    model = Plain(BLOCK)
    expected = [
        decode(model, prompt, new, FLOOR, set(stops), set(stops)) for prompt, new in zip(PROMPTS, LENGTHS, strict=True)
    ]
    assert any(len(answer.tokens) < new for answer, new in zip(expected, LENGTHS, strict=True))
    folder = tmp_path_factory.mktemp("two")
    with engine(folder, "LongestStablePrefix", ranks=2, fdfo=False, stops=stops) as found:
        chosen = [{"max_new_tokens": new, "stop_token_ids": stops} for new in LENGTHS]
        out = found.generate(input_ids=PROMPTS, sampling_params=chosen)
    assert [list(answer["output_ids"]) for answer in out] == [answer.tokens for answer in expected]


def test_an_algorithm_that_is_done_too_early_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, answers: list[Answer]
) -> None:
    with engine(tmp_path_factory.mktemp("defect"), "DoneTooEarly") as found:
        got = generated(found)
    expected = [answer.tokens for answer in answers]
    first = [BLOCK - len(prompt) % BLOCK for prompt in PROMPTS]  # what the first block holds is still right
    assert [a[:n] for a, n in zip(got, first, strict=True)] == [a[:n] for a, n in zip(expected, first, strict=True)]
    assert got != expected
