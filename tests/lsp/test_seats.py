"""More prompts than a batch holds: the next one takes the place of a finished one, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import lsp
from lsp.schedulers import NAMES, scheduler_of
from lsp_kernels import PrefixRule, Vocabulary
from tests.lsp.agreement import DELIMITERS, MASK, SIZE, STOPS, options, takes_lookahead
from tests.lsp.recorder import Recorder, last, scripted
from tests.lsp.simulation import script
from tests.support import examples

VOCABULARY = Vocabulary(SIZE, DELIMITERS, STOPS, suppress=[MASK])


class Letters:
    """A tokenizer whose every token is a letter."""

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return "".join("abcdefghijklm"[token] for token in ids)


def counting(ids: list[int]) -> np.ndarray:
    """Predicts the number of the position; the first id of the prompt says where the text ends with a stop."""
    text = [STOPS[0] if p == ids[0] else p % 6 for p in range(len(ids))]
    return np.eye(SIZE, dtype=np.float32)[text] * 9


def run(model: Recorder, ends: list[int], batch_size: int | None, **given: object) -> list[lsp.Generation]:
    """Continues prompts of one token, one token a pass, each until this position has its stop."""
    arguments = {"scheduler": lsp.FixedPrefix(1), "max_new_tokens": 6, "vocabulary": VOCABULARY}
    prompts = [[end] for end in ends]
    return lsp.generate(model, prompts, batch_size=batch_size, tokenizer=Letters(), **arguments | given)


def seats(model: Recorder) -> list[list[int | None]]:
    """Which prompt, by its first id, has which seat in each pass."""
    firsts: list[list[int | None]] = []
    for segments in model.passes:
        before = firsts[-1] if firsts else [None] * len(segments)
        new = [segment.tokens[0] if segment.tokens and not segment.held else None for segment in segments]
        held = [was if segment.tokens else None for was, segment in zip(before, segments, strict=True)]
        firsts.append([begins or was for begins, was in zip(new, held, strict=True)])
    return firsts


SCHEDULERS = {name: scheduler_of(name) for name in NAMES} | {
    "stable": lsp.LongestStablePrefix(PrefixRule(floor=0.5, beta=1.0, snap=False), stable=2),
    "less, easily": lsp.Less(0.2),
    "klass, easily": lsp.Klass(0.1, 5.0, 1),
}


@pytest.mark.parametrize("name", SCHEDULERS)
@examples(25)
@given(data=st.data())
def test_texts_counts_and_traces_are_those_of_one_by_one(name: str, data: st.DataObject) -> None:
    scheduler = SCHEDULERS[name]
    shifted = data.draw(st.booleans(), "shifted")
    lengths = data.draw(st.lists(st.integers(int(shifted), 5), min_size=1, max_size=5), "prompts")
    seed = data.draw(st.integers(0, 10**6), "seed")
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, MASK, size=n).tolist() for n in lengths]
    seeds = rng.integers(0, 99, size=len(prompts)).tolist()
    arguments = {
        "max_new_tokens": data.draw(st.integers(0, 9), "new"),
        "stop": data.draw(st.lists(st.text("abcdef", min_size=1, max_size=2), max_size=3), "stop"),
        "temperature": data.draw(st.sampled_from([0.0, 0.5, 3.0]), "temperature"),
        "tokenizer": Letters(),
        "vocabulary": VOCABULARY,
        "scheduler": scheduler,
        **data.draw(options(takes_lookahead(scheduler)), "options"),
    }
    model = scripted(script(seed, SIZE, MASK), SIZE, MASK, shifted=shifted)
    batch_size = data.draw(st.sampled_from([None, 1, 2, 3, 9]), "batch size")
    for decode in (lsp.trace, untimed):
        together = decode(model, prompts, seed=seeds, batch_size=batch_size, **arguments)
        alone = [decode(model, [p], seed=[s], **arguments)[0] for p, s in zip(prompts, seeds, strict=True)]
        assert together == alone


def untimed(*given: object, **arguments: object) -> list[lsp.Generation]:
    return [replace(out, seconds={}) for out in lsp.generate(*given, **arguments)]


def test_the_next_prompt_has_the_seat_in_the_very_next_pass() -> None:
    model = scripted(counting, SIZE, MASK)
    out = run(model, [2, 5, 1, 3, 4], 2)
    assert [each.passes for each in out] == [2, 5, 1, 3, 4]
    assert seats(model) == [[2, 5], [2, 5], [1, 5], [3, 5], [3, 5], [3, 4], [None, 4], [None, 4], [None, 4]]
    assert [each.committed_in for each in out] == [list(range(n)) for n in (2, 5, 1, 3, 4)]


def test_several_seats_that_are_free_at_once_are_taken_in_the_order_of_the_prompts() -> None:
    model = scripted(counting, SIZE, MASK)
    run(model, [2, 2, 3, 1, 4, 5], 3)
    assert seats(model)[2:4] == [[1, 4, 3], [5, 4, None]]


def test_a_stop_string_found_between_two_passes_frees_the_seat() -> None:
    model = scripted(counting, SIZE, MASK)
    out = run(model, [5, 6, 4], 1, stop="cd")
    assert [(each.text, each.passes, each.finished) for each in out] == [("b", 3, True)] * 3
    assert seats(model) == [[5]] * 3 + [[6]] * 3 + [[4]] * 3


@pytest.mark.parametrize(("batch_size", "rows"), [(None, 3), (1, 1), (2, 2), (3, 3), (8, 3), (np.int64(2), 2)])
def test_the_cache_has_a_row_for_each_seat_and_room_for_the_longest_prompt(batch_size: object, rows: int) -> None:
    model = scripted(counting, SIZE, MASK)
    last(lsp.decode(model, [[1], [2] * 5, [3]], 6, lsp.Full(), VOCABULARY, batch_size=batch_size))
    assert (model.cache.batch, model.cache.capacity) == (rows, 5 + 6)
    assert {len(segments) for segments in model.passes} == {rows}


@pytest.mark.parametrize("batch_size", [None, 1, 5])
def test_prompts_with_nothing_to_decode_need_no_pass(batch_size: int | None) -> None:
    model = scripted(counting, SIZE, MASK)
    assert run(model, [], batch_size) == []
    nothing = run(model, [1, 2, 3], batch_size, max_new_tokens=0)
    assert [(out.text, out.tokens, out.passes, out.positions) for out in nothing] == [("", [], 0, 0)] * 3
    assert model.passes == []


def test_a_prompt_that_is_finished_before_it_sits_down_is_passed_over() -> None:
    model = scripted(counting, SIZE, MASK)
    loop = lsp.decode(model, [[2], [5], [3]], 6, lsp.FixedPrefix(1), VOCABULARY, batch_size=1)
    canvases = next(loop).canvases
    canvases[1].finish(1)
    assert last(loop).passes == 2 + 3
    assert seats(model) == [[2]] * 2 + [[3]] * 3
    assert [canvas.passes for canvas in canvases] == [2, 0, 3]


def test_an_error_names_the_prompt_and_its_own_pass_and_keeps_what_was_committed() -> None:
    def broken(ids: list[int]) -> np.ndarray:
        return counting(ids) * (np.nan if ids[0] == 5 and ids.count(MASK) == 4 else 1)

    with pytest.raises(lsp.DecodingError, match="NaN in sequence 2, pass 2; nothing of this pass") as caught:
        run(scripted(broken, SIZE, MASK), [2, 1, 5, 3, 4], 2)
    progress = caught.value.progress
    assert [canvas.run.tolist() for canvas in progress.canvases] == [[1, 7], [7], [1, 2], [1], []]
    assert progress.passes == 3


def test_a_model_that_raises_keeps_what_all_prompts_have_committed() -> None:
    calls = count()

    def broken(ids: list[int]) -> np.ndarray:
        if next(calls) == 5:
            raise torch.OutOfMemoryError("no memory left")
        return counting(ids)

    with pytest.raises(lsp.DecodingError, match="the model raised OutOfMemoryError in pass 2") as caught:
        run(scripted(broken, SIZE, MASK), [1, 5, 2, 3], 2)
    assert [canvas.run.tolist() for canvas in caught.value.progress.canvases] == [[7], [1, 2], [1], []]


def test_text_of_every_prompt_comes_as_it_is_committed() -> None:
    arguments = {"max_new_tokens": 6, "scheduler": lsp.FixedPrefix(1), "vocabulary": VOCABULARY}
    run = lsp.generation.Run(
        scripted(counting, SIZE, MASK), [[2], [3], [4]], batch_size=2, tokenizer=Letters(), **arguments
    )
    pieces = [[writer.piece() for writer in run.writers] for _ in run]
    assert pieces == [["b", "b", ""], ["h", "c", ""], ["", "h", "b"], ["", "", "c"], ["", "", "d"], ["", "", "h"]]


def test_a_stream_has_one_seat() -> None:
    arguments = {"max_new_tokens": 6, "scheduler": lsp.FixedPrefix(2), "vocabulary": VOCABULARY}
    for batch_size in (None, 1, 8):
        model = scripted(counting, SIZE, MASK)
        pieces = list(lsp.stream(model, [5], tokenizer=Letters(), batch_size=batch_size, **arguments))
        assert (pieces, model.cache.batch) == (["bc", "de", "h"], 1)


def test_a_bar_counts_the_tokens_of_prompts_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    rich = pytest.importorskip("rich.progress")
    shown: list[int] = []
    monkeypatch.setattr(rich.Progress, "update", lambda self, task, completed: shown.append(completed))
    run(scripted(counting, SIZE, MASK), [2, 9, 9], 2, progress=True)
    assert shown == [2, 8, 10, 12, 14, 16, 17, 18]


def test_seconds_are_those_of_the_whole_call() -> None:
    out = run(scripted(counting, SIZE, MASK), [2, 5, 1], 1)
    assert out[0].seconds == out[1].seconds == out[2].seconds
    assert all(seconds > 0 for seconds in out[0].seconds.values())


BAD = [
    (0, ValueError, "Invalid batch_size: expected an integer from 1 to 2\\^31 - 1, got 0"),
    (-1, ValueError, "Invalid batch_size: expected an integer from 1 to 2\\^31 - 1, got -1"),
    (True, ValueError, "Invalid batch_size: expected an integer from 1 to 2\\^31 - 1, got True"),
    (2.5, TypeError, "Invalid batch_size: expected an integer, got 2.5"),
    ("8", TypeError, "Invalid batch_size: expected an integer, got '8'"),
]
CALLS: dict[str, Callable[..., object]] = {
    "generate": lsp.generate,
    "trace": lsp.trace,
    "stream": lambda *given, **more: next(lsp.stream(*given, **more)),
}


@pytest.mark.abuse("prompts and generation")
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("batch_size", "error", "message"), BAD)
def test_a_wrong_batch_size_is_named(call: str, batch_size: object, error: type, message: str) -> None:
    def never(ids: Tensor) -> Tensor:
        raise AssertionError("decoded with a wrong batch_size")

    model = lsp.adapt(never, vocab_size=SIZE, mask_id=MASK)
    with pytest.raises(error, match=message):
        CALLS[call](model, [1], batch_size=batch_size, tokenizer=Letters(), vocabulary=VOCABULARY)
