"""The plug-in for SGLang without SGLang: its steps against rules written once more, its settings, what it streams."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import lsp.integrations.sglang as plugin
from lsp.integrations.sglang import canvas, prefix
from lsp.integrations.sglang.settings import Settings
from lsp_kernels import PrefixRule
from tests.lsp import sglang_stand_in as stand_in
from tests.lsp.sglang_stand_in import DllmConfig, forward_batch
from tests.support import examples

MASK, SIZE, L = 15, 16, 8


@pytest.fixture
def sglang() -> Iterator[SimpleNamespace]:
    with stand_in.installed() as found:
        plugin.register()
        yield found


def made(sglang: SimpleNamespace, name: str, fdfo: bool = False, **settings: Any) -> Any:
    return sglang.algorithms[name](DllmConfig(name, settings, L, MASK, fdfo))


def rows(*best: tuple[int, float]) -> Tensor:
    """Logits [len(best), V] in which each row has its best token, so far above all others."""
    out = torch.zeros(len(best), SIZE)
    for row, (token, margin) in zip(out, best, strict=True):
        row[token] = margin
    return out


# The longest stable prefix without fading, on one block: its margins and tokens by position, and the masks from left to
# right.
def chosen(masks: list[int], tokens: list[int], margins: list[float], settings: Settings) -> set[int]:
    floor, islands, stops = settings.rule.floor, settings.islands, set(settings.stops)
    run: list[int] = []
    for p in masks:
        if margins[p] < floor or (run and tokens[run[-1]] in stops):
            break
        run.append(p)
    sure = [p for p in masks if islands is not None and margins[p] >= islands]
    if not run:
        best = max(masks, key=lambda p: (margins[p], -p))
        run = sure or ([best] if settings.stuck == "best" else masks[:1])
    return {*run, *(p for p in sure if tokens[p] in stops)}


def expected(ids: list[int], masked: list[bool], tokens: list[int], margins: list[float], s: Settings) -> list[int]:
    masks = [p for p in range(len(ids)) if masked[p]]
    where = chosen(masks, tokens, margins, s) if masks else set()
    ended = [p for p in sorted(where) if tokens[p] in set(s.stops)]
    out = [tokens[p] if p in where else ids[p] for p in range(len(ids))]
    for p in masks:
        if ended and p > ended[0] and p not in where:
            out[p] = tokens[ended[0]]
    return out


@examples(150)
@given(data=st.data())
def test_a_batch_of_blocks_commits_what_the_rule_says_of_each(data: st.DataObject) -> None:
    islands = data.draw(st.sampled_from([None, 2.0, 4.0, 6.0]))
    stuck = data.draw(st.sampled_from(["first", "best"]))
    settings = Settings(rule={"floor": 4.0}, islands=islands, stuck=stuck, stops=data.draw(st.sampled_from([(), (3,)])))
    blocks = data.draw(st.integers(1, 4))
    margin = st.sampled_from([0.5, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0])
    tokens = [[data.draw(st.integers(0, 6)) for _ in range(L)] for _ in range(blocks)]
    margins = [[data.draw(margin) for _ in range(L)] for _ in range(blocks)]
    masked = [data.draw(st.lists(st.booleans(), min_size=L, max_size=L)) for _ in range(blocks)]
    ids = [[MASK if m else 9 for m in row] for row in masked]
    logits = torch.stack([rows(*zip(t, m, strict=True)) for t, m in zip(tokens, margins, strict=True)])
    vocabulary = settings.vocabulary(SIZE, MASK, logits.device)
    out, done = prefix.advance(logits, torch.tensor(ids), torch.tensor(masked), settings, vocabulary)
    assert done == [not any(row) for row in masked]
    every = zip(ids, masked, tokens, margins, strict=True)
    assert out.tolist() == [expected(*block, settings) for block in every]


def test_requests_at_different_passes_share_a_batch(sglang: SimpleNamespace) -> None:
    """One is complete, one has islands, one begins after its prompt, one has nothing but masks."""
    found = made(sglang, "LongestStablePrefix")
    ids = [[1] * L, [1, MASK, 2, MASK, 3, MASK, MASK, MASK], [4] * 6 + [MASK] * 2, [MASK] * L]
    forward = forward_batch(ids)
    address = forward.input_ids.data_ptr()
    logits = torch.cat([rows(*[(5 + p % 3, 5.0 if p < 6 else 1.0) for p in range(L)]) for _ in ids])
    assert found.step(forward, logits, [None] * 4) == [True, False, False, False]
    assert forward.input_ids.data_ptr() == address
    after = [[1] * L, [1, 6, 2, 5, 3, 7, MASK, MASK], [4] * 6 + [5, MASK], [5, 6, 7, 5, 6, 7, MASK, MASK]]
    assert forward.input_ids.view(4, L).tolist() == after
    assert made(sglang, "LongestStablePrefix").step(forward_batch(ids[:1]), logits[:L], [None]) == [True]


def test_a_prompt_may_hold_the_mask(sglang: SimpleNamespace) -> None:
    forward = forward_batch([[MASK, MASK] + [MASK] * 6], [[True, True] + [False] * 6])
    found = made(sglang, "LongestStablePrefix")
    assert found.step(forward, rows(*[(5, 9.0)] * L), [None]) == [False]
    assert forward.input_ids.tolist() == [MASK, MASK] + [5] * 6
    assert found.step(forward, rows(*[(6, 9.0)] * L), [None]) == [True]
    assert forward.input_ids.tolist() == [MASK, MASK] + [5] * 6


def test_a_sure_stop_completes_its_block_while_masks_before_it_stay_open(sglang: SimpleNamespace) -> None:
    found = made(sglang, "LongestStablePrefix", stops=[3])
    forward = forward_batch([[MASK] * L])
    logits = rows((1, 9.0), (2, 1.0), (2, 1.0), (3, 9.0), (4, 9.0), (4, 1.0), (4, 1.0), (4, 1.0))
    found.step(forward, logits, [None])
    assert forward.input_ids.tolist() == [1, MASK, MASK, 3, 3, 3, 3, 3]


@pytest.mark.parametrize("ids", [[MASK] * L, [1, MASK, 2, MASK, MASK, 3, MASK, MASK]], ids=["one run", "islands"])
def test_nan_ends_no_server(sglang: SimpleNamespace, ids: list[int]) -> None:
    """The broken request goes on mask by mask, the other one as usual."""
    found = made(sglang, "LongestStablePrefix")
    forward = forward_batch([ids, [MASK] * L])
    broken = torch.full((L, SIZE), torch.nan)
    found.step(forward, torch.cat([broken, rows(*[(5, 9.0)] * L)]), [None] * 2)
    first, second = forward.input_ids.view(2, L).tolist()
    assert second == [5] * L
    assert [a != b for a, b in zip(first, ids, strict=True)].index(True) == ids.index(MASK)
    assert sum(a != b for a, b in zip(first, ids, strict=True)) == 1
    assert all(0 <= token < SIZE for token in first)


def test_a_row_of_nan_is_not_the_best_of_a_block_that_is_stuck(sglang: SimpleNamespace) -> None:
    found, forward = made(sglang, "LongestStablePrefix", stuck="best"), forward_batch([[MASK] * L])
    logits = rows(*[(4, 1.0)] * 6, (5, 2.0), (6, 1.0))
    logits[3] = torch.nan
    found.step(forward, logits, [None])
    assert forward.input_ids.tolist() == [MASK] * 6 + [5, MASK]


def test_without_islands_not_even_an_infinite_margin_is_one(sglang: SimpleNamespace) -> None:
    found = made(sglang, "LongestStablePrefix", islands=None, stuck="best", stops=[3])
    forward = forward_batch([[MASK] * L])
    logits = rows(*[(4, 1.0)] * L)
    for row, token in ((logits[2], 5), (logits[4], 3)):
        row[:] = -torch.inf
        row[token] = 0.0
    found.step(forward, logits, [None])
    assert forward.input_ids.tolist() == [MASK, MASK, 5] + [MASK] * 5


def test_a_request_that_does_not_fit_the_canvas_or_names_no_length_is_refused() -> None:
    assert canvas.refusal(prompt=10, new=6, block=16) is None
    for new in (7, None):
        expected = f"Invalid max_new_tokens: expected at most 6 (block_size 16, prompt 10), got {new}"
        assert canvas.refusal(prompt=10, new=new, block=16) == expected


def test_low_confidence_by_hand(sglang: SimpleNamespace) -> None:
    found = made(sglang, "FusedLowConfidence", threshold=0.9)
    forward = forward_batch([[1, 1] + [MASK] * 6, [MASK] * L, [2] * L])
    logits = torch.cat([rows(*[(p, m) for p in range(L)]) for m in (8.0, 1.0, 8.0)])
    logits[2 * L - 3, L - 3] = 2.0  # the most confident of those that are not sure
    logits[4, 4] = 1.0
    assert found.step(forward, logits, [None] * 3) == [False, False, True]
    after = [[1, 1, 2, 3, MASK, 5, 6, 7], [MASK] * 5 + [5] + [MASK] * 2, [2] * L]
    assert forward.input_ids.view(3, L).tolist() == after


def test_joint_threshold_by_hand(sglang: SimpleNamespace) -> None:
    """Masks are filled, then tokens edited as long as the budget lasts; without a change a block is finished."""
    found = made(sglang, "FusedJointThreshold", threshold=0.9, edit_threshold=0.9, max_post_edit_steps=1)
    forward = forward_batch([[1] * 4 + [MASK] * 4, [MASK] * L])
    states = found.init_step_state(forward)
    sure, other = rows(*[(5, 8.0)] * L), rows(*[(6, 8.0)] * L)
    assert found.step(forward, torch.cat([sure, sure]), states) == [False, False]
    assert forward.input_ids.view(2, L).tolist() == [[1] * 4 + [5] * 4, [5] * L]
    assert found.step(forward, torch.cat([sure, other]), states) == [True, False]
    assert forward.input_ids.view(2, L).tolist() == [[1] * 4 + [5] * 4, [6] * L]
    assert found.step(forward, torch.cat([other, sure]), states) == [True, True]  # the budget is spent
    assert forward.input_ids.view(2, L).tolist() == [[1] * 4 + [5] * 4, [6] * L]


def test_settings_are_read_from_a_file_or_refused_by_name() -> None:
    given_ = {"block_size": 32, "rule": {"floor": 3, "min_length": 2}, "islands": None, "stops": [3], "stream": True}
    settings = Settings.read(given_)
    assert settings.rule == PrefixRule(floor=3, min_length=2, beta=1.0, snap=False, no_delimiter="keep")
    assert (settings.islands, settings.stops, settings.stream) == (None, (3,), True)
    assert Settings.read({}) == Settings()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"floor": 3}, "Invalid algorithm config: .* got 'floor'"),
        ({"rule": {"flor": 3}}, "Invalid rule: .* got 'flor'"),
        ({"rule": 3}, "Invalid rule: expected a mapping, got 3"),
        ({"rule": {"floor": None}, "islands": 3}, "Invalid islands"),
        ({"rule": {"snap": True}}, "Invalid rule: expected a vocabulary with delimiters"),
        ({"islands": -1}, "Invalid islands"),
        ({"stuck": "last"}, "Invalid stuck"),
        ({"stops": 3}, "Invalid stops: expected a list of ids, got 3"),
        ({"stops": ["</s>"]}, "Invalid stops: expected a list of ids"),
        ({"delimiters": "."}, "Invalid delimiters"),
        ({"stream": "yes"}, "Invalid stream: expected true or false, got 'yes'"),
    ]
    for config, words in wrong:
        with pytest.raises((ValueError, TypeError), match=words):
            Settings.read(config)


def test_streaming_needs_a_server_that_gives_back_single_blocks(sglang: SimpleNamespace) -> None:
    assert made(sglang, "LongestStablePrefix", fdfo=True, stream=True).settings.stream
    with pytest.raises(ValueError, match="Invalid stream: expected a server with --dllm-fdfo"):
        made(sglang, "LongestStablePrefix", stream=True)


def stream(sglang: SimpleNamespace, request: Any, *passes: tuple[list[int], bool], **config: Any) -> list[list[int]]:
    """What a client has been sent after each pass: the ids of the block, and whether it is complete."""
    hook, kind = sglang.hooks["sglang.srt.dllm.mixin.scheduler.SchedulerDllmMixin.process_batch_result_dllm"]
    assert kind == "around"
    name = config.pop("algorithm", "LongestStablePrefix")
    scheduler = SimpleNamespace(dllm_config=DllmConfig(name, {"stream": True} | config, L, MASK, True))
    process = stand_in.scheduled(request, L)
    for ids, complete in passes:
        result = SimpleNamespace(next_token_ids=[ids], accept_length_per_req_cpu=[L if complete else 0])
        hook(process, scheduler, SimpleNamespace(reqs=[request]), result)
    return request.sent


HALF = [9, 9, 1, 2, MASK, 3, MASK, MASK]
MORE = [9, 9, 1, 2, 4, 3, MASK, MASK]
FULL = [9, 9, 1, 2, 4, 3, 5, 6]


def test_what_is_committed_is_sent_and_the_block_is_added_once(sglang: SimpleNamespace) -> None:
    request = stand_in.Request([9, 9])
    block = [7, 8, MASK, MASK, MASK, MASK, MASK, MASK]
    sent = stream(sglang, request, (HALF, False), (HALF, False), (MORE, False), (FULL, True), (block, False))
    assert sent == [[1, 2], [1, 2], [1, 2, 4, 3], [1, 2, 4, 3, 5, 6], [1, 2, 4, 3, 5, 6, 7, 8]]


@pytest.mark.parametrize(
    ("request_", "config", "sent"),
    [
        pytest.param(stand_in.Request([9, 9], max_new_tokens=1), {}, [1], id="its length"),
        pytest.param(stand_in.Request([9, 9], ends=(2,)), {}, [1], id="its end"),
        pytest.param(stand_in.Request([9, 9], stop_strs=(".",)), {}, [], id="stop strings"),
        pytest.param(stand_in.Request([9, 9], stream=False), {}, [], id="no stream"),
        pytest.param(stand_in.Request([9, 9]), {"stream": False}, [], id="not asked for"),
        pytest.param(stand_in.Request([9, 9]), {"algorithm": "JointThreshold"}, [], id="tokens that may change"),
        pytest.param(stand_in.Request(list(range(L)), dllm_block_offset=0), {}, [], id="a block of the prompt"),
    ],
)
def test_nothing_is_sent_that_could_be_taken_back(
    sglang: SimpleNamespace, request_: Any, config: dict[str, Any], sent: list[int]
) -> None:
    assert stream(sglang, request_, (HALF, False), **config) == [sent]


def test_another_version_of_the_engine_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with stand_in.installed("0.6.0") as found, caplog.at_level(logging.WARNING):
        plugin.register()
    fused = {"FusedLowConfidence", "FusedJointThreshold"}
    assert set(found.algorithms) == {"LongestStablePrefix", "LongestStablePrefixCanvas", *fused}
    assert "tested with SGLang 0.5.23; this is 0.6.0" in caplog.text


def test_what_does_not_fit_into_the_canvas_is_refused(sglang: SimpleNamespace) -> None:
    found = sglang.algorithms["LongestStablePrefixCanvas"]
    request = stand_in.Request(list(range(5)), max_new_tokens=3)
    request.dllm_config = SimpleNamespace(block_size=L)
    assert found.validate_request(request) is None
    request.max_new_tokens = 4
    words = "Invalid max_new_tokens: expected at most 3 (block_size 8, prompt 5), got 4"
    assert found.validate_request(request) == words
