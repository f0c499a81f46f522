"""From prompts to text: stops, chats, streams, what is counted, and errors that say what is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import lsp
from lsp_kernels import Vocabulary
from tests.lsp import tokenizers_at_hand
from tests.lsp.checkpoints import ids_of, llada

transformers = pytest.importorskip("transformers")

CHAT = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer():
    out = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers_at_hand.byte_level(), eos_token="<|endoftext|>", mask_token="<|mask|>"
    )
    out.chat_template = CHAT
    return out


@pytest.fixture
def pieces(tokenizer) -> object:
    """The sentencepiece tokenizer, whose bytes come one by one."""
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers_at_hand.sentencepiece(), eos_token="</s>", mask_token="<mask>"
    )


def writes(
    tokenizer, text: str | list[int], prompt: int = 1, margins: Callable[[int], float] = lambda _: 5.0
) -> object:
    """A model that continues a prompt of so many tokens with this text, one byte a token, and then ends it."""
    ids = [tokenizer.eos_token_id] * prompt + (by_bytes(tokenizer, text) if isinstance(text, str) else text)
    size = len(tokenizer)

    def forward(input_ids: Tensor) -> Tensor:
        assert input_ids.shape[0] == 1
        out = torch.zeros(1, input_ids.shape[1], size)
        for p in range(input_ids.shape[1]):
            out[0, p, ids[p] if p < len(ids) else tokenizer.eos_token_id] = margins(p - prompt)
        return out

    return lsp.adapt(forward, vocab_size=size, mask_id=tokenizer.mask_token_id, stop_ids=[tokenizer.eos_token_id])


def by_bytes(tokenizer, text: str) -> list[int]:
    """The text one token per byte, so that borders are everywhere."""
    from lsp.tokens import _byte_alphabet

    alphabet = {byte: character for character, byte in _byte_alphabet().items()}
    vocab = tokenizer.get_vocab()
    if "<0x41>" in vocab:
        return [vocab[f"<0x{byte:02X}>"] for byte in text.encode()]
    return [vocab[alphabet[byte]] for byte in text.encode()]


SCHEDULERS = {
    "one": lsp.FixedPrefix(1),
    "two": lsp.FixedPrefix(2),
    "five": lsp.FixedPrefix(5),
    "all": lsp.FixedPrefix(99),
    "full": lsp.Full(),
    "scattered": lsp.TopK(3),
    "lsp": lsp.LongestStablePrefix(),
}
every = pytest.mark.parametrize("scheduler", SCHEDULERS.values(), ids=SCHEDULERS)


def right_to_left(place: int) -> float:
    return 1.0 + place / 10


def generate(model: object, tokenizer: object, **given: object) -> lsp.Generation:
    (out,) = lsp.generate(model, [0], tokenizer=tokenizer, **{"max_new_tokens": 40} | given)
    return out


@every
def test_a_stop_token_ends_the_text(tokenizer, scheduler: object) -> None:
    out = generate(writes(tokenizer, "So, it ends."), tokenizer, scheduler=scheduler)
    assert out.text == "So, it ends."
    assert out.tokens == [*by_bytes(tokenizer, "So, it ends."), tokenizer.eos_token_id]
    assert out.finished
    assert not generate(writes(tokenizer, "x" * 50), tokenizer, scheduler=scheduler).finished


@every
def test_without_stop_early_a_stop_token_is_a_token_like_any_other(tokenizer, scheduler: object) -> None:
    ids = by_bytes(tokenizer, "ab")
    ids = [*ids, tokenizer.eos_token_id, *ids]
    out = generate(writes(tokenizer, ids), tokenizer, scheduler=scheduler, max_new_tokens=5, stop_early=False)
    assert out.tokens == ids
    assert not out.finished
    assert out.text == "abab"


@every
@pytest.mark.parametrize("margins", [lambda _: 5.0, right_to_left], ids=["left to right", "right to left"])
def test_stop_strings_are_found_across_token_borders(tokenizer, scheduler: object, margins: object) -> None:
    model = writes(tokenizer, "one\n\ntwo END three", margins=margins)
    for stop, text in (("\n\n", "one"), ("END", "one\n\ntwo "), (["END", "o\n\nx", "wo E"], "one\n\nt")):
        out = generate(model, tokenizer, scheduler=scheduler, stop=stop)
        assert (out.text, out.finished) == (text, True)
        ends = len(text) + len(stop if isinstance(stop, str) else "wo E")
        assert out.tokens == by_bytes(tokenizer, "one\n\ntwo END three"[:ends])
        pieces = list(lsp.stream(model, [0], tokenizer=tokenizer, scheduler=scheduler, stop=stop, max_new_tokens=40))
        assert "".join(pieces) == text
    assert generate(model, tokenizer, scheduler=scheduler, stop="twoE").text == "one\n\ntwo END three"


@every
def test_of_overlapping_stop_strings_the_first_to_be_complete_counts(tokenizer, scheduler: object) -> None:
    out = generate(writes(tokenizer, "abcdef"), tokenizer, scheduler=scheduler, stop=["bcde", "c"])
    assert (out.text, len(out.tokens)) == ("ab", 3)
    out = generate(writes(tokenizer, "abcdef"), tokenizer, scheduler=scheduler, stop=["d", "bcd", "cd"])
    assert (out.text, len(out.tokens)) == ("a", 4)


def test_a_stop_string_inside_one_token_cuts_the_text_and_keeps_the_token(tokenizer) -> None:
    word = tokenizer.get_vocab()["Hello"]
    out = generate(writes(tokenizer, [word, word]), tokenizer, stop="ll")
    assert (out.text, out.tokens, out.finished) == ("He", [word], True)


def test_a_stop_string_at_the_very_end_is_no_length(tokenizer) -> None:
    out = generate(writes(tokenizer, "ab."), tokenizer, stop=".", max_new_tokens=3)
    assert (out.text, out.finished, len(out.tokens)) == ("ab", True, 3)


def test_a_stop_string_ends_one_sequence_of_a_batch(tokenizer) -> None:
    model = writes(tokenizer, "ab.cdefghi")
    first, second = lsp.generate(
        model,
        [[0], [0, 0]],
        tokenizer=tokenizer,
        stop=["c"],
        max_new_tokens=6,
        scheduler=lsp.FixedPrefix(1),
    )
    assert (first.text, first.passes) == ("ab.", 4)
    assert (second.text, second.passes) == ("b.", 3)


@every
@pytest.mark.parametrize("kind", ["tokenizer", "pieces"])
def test_streamed_pieces_are_the_text_and_hold_no_half_character(
    request: pytest.FixtureRequest, kind: str, scheduler: object
) -> None:
    tokenizer, text = request.getfixturevalue(kind), "é, 你好。\nnaïve 🙂 end."
    model = writes(tokenizer, text)
    given = {"tokenizer": tokenizer, "scheduler": scheduler, "max_new_tokens": 40}
    pieces = list(lsp.stream(model, [0], **given))
    assert "".join(pieces) == text == lsp.generate(model, [0], **given)[0].text
    assert all(piece and "�" not in piece for piece in pieces)
    if scheduler == lsp.FixedPrefix(1):
        assert pieces == list(text)


def test_text_is_streamed_as_soon_as_it_is_committed(tokenizer) -> None:
    passes = []
    model = writes(tokenizer, "abcdef")
    inner = model.run
    model.run = lambda ids: passes.append(0) or inner(ids)
    seen = []
    for piece in lsp.stream(model, [0], tokenizer=tokenizer, scheduler=lsp.FixedPrefix(2), max_new_tokens=20):
        seen.append((piece, len(passes)))
    assert seen == [("ab", 1), ("cd", 2), ("ef", 3)]


def test_what_may_become_a_stop_string_is_held_back(tokenizer) -> None:
    given = {"tokenizer": tokenizer, "scheduler": lsp.FixedPrefix(1), "max_new_tokens": 20, "stop": ["xyz"]}
    assert list(lsp.stream(writes(tokenizer, "axybxy"), [0], **given)) == ["a", "xyb", "xy"]
    assert list(lsp.stream(writes(tokenizer, "axyxyzq"), [0], **given)) == ["a", "xy"]


def test_an_unfinished_character_at_the_end_is_shown_as_such(tokenizer) -> None:
    ids = by_bytes(tokenizer, "a你")[:-1]
    model = writes(tokenizer, ids)
    given = {"tokenizer": tokenizer, "scheduler": lsp.FixedPrefix(1), "max_new_tokens": 3}
    assert list(lsp.stream(model, [0], **given)) == ["a", "�"]
    assert lsp.generate(model, [0], **given)[0].text == "a�"


@every
def test_a_streamer_of_transformers_prints_the_text(
    tokenizer, scheduler: object, capsys: pytest.CaptureFixture
) -> None:
    text = "one two, 你好 three"
    streamer = transformers.TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    out = generate(writes(tokenizer, text), tokenizer, scheduler=scheduler, streamer=streamer)
    assert out.text == text
    assert capsys.readouterr().out == text + "\n"


def test_a_streamer_of_transformers_gets_nothing_past_a_stop_string(
    tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    for text, stop, scheduler in (
        ("one; two; three", ";", lsp.FixedPrefix(40)),
        ("one; two; three", "; t", lsp.FixedPrefix(1)),
        ("one; two; three", "x", lsp.FixedPrefix(3)),
        ("Grüße; ünd", "ü", lsp.FixedPrefix(1)),
    ):
        streamer = transformers.TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
        given = {"scheduler": scheduler, "streamer": streamer, "stop": stop}
        out = generate(writes(tokenizer, text), tokenizer, **given)
        assert capsys.readouterr().out == f"{out.text}\n" == f"{text.partition(stop)[0]}\n"


def test_a_streamer_is_given_the_prompt_first_and_the_end_last(tokenizer) -> None:
    class Streamer:
        def __init__(self) -> None:
            self.seen: list[object] = []

        def put(self, value: Tensor) -> None:
            assert value.dtype == torch.int64
            self.seen.append(value.tolist())

        def end(self) -> None:
            self.seen.append("end")

    streamer, ids = Streamer(), by_bytes(tokenizer, "abc")
    generate(writes(tokenizer, "abc"), tokenizer, scheduler=lsp.FixedPrefix(2), streamer=streamer)
    assert streamer.seen == [[[0]], ids[:2], [ids[2], tokenizer.eos_token_id], "end"]
    streamer = Streamer()
    lsp.generate(writes(tokenizer, "abc", 0), [[]], tokenizer=tokenizer, streamer=streamer, max_new_tokens=0)
    assert streamer.seen == [[[]], "end"]
    with pytest.raises(ValueError, match="Invalid streamer: expected a single prompt, got 2"):
        lsp.generate(writes(tokenizer, "abc"), [[0], [0]], tokenizer=tokenizer, streamer=streamer)


def test_chats_go_through_the_template(tokenizer) -> None:
    chat = [{"role": "user", "content": "Hello, world."}]
    ids = tokenizer("user: Hello, world.\n>")["input_ids"]
    model = writes(tokenizer, "Well.", prompt=len(ids))
    seen = []
    inner = model.run
    model.run = lambda input_ids: seen.append(input_ids[0].tolist()) or inner(input_ids)
    (alone,) = lsp.generate(model, chat, tokenizer=tokenizer, max_new_tokens=8)
    assert seen[0][: len(ids) + 1] == [*ids, tokenizer.mask_token_id]
    assert alone.text == "Well."
    several = lsp.generate(model, [chat, "user: Hello, world.\n>", ids], tokenizer=tokenizer, max_new_tokens=8)
    assert [out.text for out in several] == ["Well."] * 3


def test_prompts_come_alone_or_several_as_text_or_as_ids(tokenizer) -> None:
    ids = tokenizer("Hello, world.")["input_ids"]
    model = writes(tokenizer, "Well.", prompt=len(ids))
    one = ["Hello, world.", ids, tuple(ids), np.array(ids), torch.tensor(ids), torch.tensor([ids]), [ids]]
    for prompts in one:
        assert [out.text for out in lsp.generate(model, prompts, tokenizer=tokenizer)] == ["Well."]
    two = [[ids, "Hello, world."], torch.tensor([ids, ids]), [torch.tensor(ids), np.array(ids)]]
    for prompts in two:
        assert [out.text for out in lsp.generate(model, prompts, tokenizer=tokenizer)] == ["Well."] * 2
    assert lsp.generate(model, [], tokenizer=tokenizer) == []


def test_nothing_new_is_an_empty_continuation(tokenizer) -> None:
    model = writes(tokenizer, "abc")
    for prompts in ([0], "Hello", [[]], ""):
        (out,) = lsp.generate(model, prompts, tokenizer=tokenizer, max_new_tokens=0)
        assert (out.text, out.tokens, out.finished, out.commits, out.passes, out.positions) == ("", [], False, [], 0, 0)
        assert out.seconds == {"model": 0, "head": 0, "host": 0}
        assert out.tokens_per_pass == 0
    assert list(lsp.stream(model, [0], tokenizer=tokenizer, max_new_tokens=0)) == []


def test_an_empty_prompt_is_continued(tokenizer) -> None:
    for prompts in ("", [[]]):
        (out,) = lsp.generate(writes(tokenizer, "abc", prompt=0), prompts, tokenizer=tokenizer, max_new_tokens=9)
        assert out.text == "abc"


def test_passes_positions_commits_and_seconds_are_counted(tokenizer) -> None:
    scheduler, begin = lsp.FixedPrefix(4), time.perf_counter()
    short, long = lsp.generate(
        writes(tokenizer, "x" * 50), [[0], [0, 0, 0]], tokenizer=tokenizer, scheduler=scheduler, max_new_tokens=10
    )
    elapsed = time.perf_counter() - begin
    assert short.commits == long.commits == [4, 4, 2]
    assert (short.passes, short.positions) == (3, 11 + 11 + 11)  # an adapted model computes whole sequences
    assert (long.passes, long.positions) == (3, 13 + 13 + 13)
    assert short.tokens_per_pass == pytest.approx(10 / 3)
    assert set(short.seconds) == {"model", "head", "host"}
    assert all(value > 0 for value in short.seconds.values())
    assert sum(short.seconds.values()) < elapsed
    assert (short.scheduler, short.options) == (scheduler, lsp.Options())
    (exact,) = lsp.generate(
        writes(tokenizer, "x" * 50), [0], tokenizer=tokenizer, scheduler=scheduler, max_new_tokens=10, cache="none"
    )
    assert exact.positions == short.positions
    assert exact.options == lsp.Options(cache="none")


def test_a_loaded_model_of_ids_needs_no_tokenizer(tmp_path: Path) -> None:
    case = llada()
    model = lsp.load(case.save(tmp_path))
    (out,) = lsp.generate(model, ids_of(case, 5), max_new_tokens=6, scheduler="threshold")
    assert (out.text, len(out.tokens)) == (None, 6)
    with pytest.raises(ValueError, match="Invalid prompts: expected token ids without a tokenizer, got text"):
        lsp.generate(model, "Hello")
    with pytest.raises(ValueError, match="Invalid stop: expected none without a tokenizer"):
        lsp.generate(model, [9], stop="x")
    with pytest.raises(ValueError, match="Invalid prompt: expected a single one and a tokenizer"):
        next(lsp.stream(model, [9], scheduler="full"))
    with pytest.raises(ValueError, match="Invalid rule: expected a vocabulary with delimiters for snap=True, got none"):
        lsp.generate(model, [9], scheduler="paper")
    with pytest.raises(ValueError, match="Invalid blocks: 'delimiter' expects a vocabulary with delimiters, got none"):
        lsp.generate(model, [9], scheduler="adablock")
    for name in {None, *lsp.schedulers.NAMES} - {"paper", "adablock"}:
        assert len(lsp.generate(model, [9], scheduler=name, max_new_tokens=4)[0].tokens) == 4


def test_the_embedded_model_answers_the_same_in_a_batch_and_streamed() -> None:
    model = lsp.load("tiny")
    prompts = ["Use 3, 5 and 7 to make 15.\n", "Use 2, 9 and 14 to make 4.\n"]
    together = lsp.generate(model, prompts, max_new_tokens=24, cache="none")
    for prompt, out in zip(prompts, together, strict=True):
        assert "".join(lsp.stream(model, prompt, max_new_tokens=24, cache="none")) == out.text
    assert all(out.text for out in together)


def test_sampling_is_seeded_and_the_same_in_any_batch(tokenizer) -> None:
    model = writes(tokenizer, "abc", margins=lambda _: 0.5)
    given = {"tokenizer": tokenizer, "temperature": 1.0, "max_new_tokens": 12, "scheduler": "threshold"}

    def tokens(prompts: list[list[int]], seed: object) -> list[list[int]]:
        return [out.tokens for out in lsp.generate(model, prompts, seed=seed, **given)]

    together = tokens([[0], [1, 2], [0]], 5)
    assert together == tokens([[0], [1, 2], [0]], [5, 6, 7])
    assert together[1] == tokens([[1, 2]], 6)[0] == tokens([[1, 2]], [6])[0] == tokens([[1, 2]], np.int64(6))[0]
    assert together[0] != together[2] == tokens([[0]], 7)[0]
    with pytest.raises(ValueError, match="Invalid seed: expected a number or 2 of them, got 3"):
        tokens([[0], [1]], [1, 2, 3])


@pytest.mark.abuse("prompts and generation")
@pytest.mark.parametrize("name", ["guidance_scale", "logits_processor", "num_beams", "do_sample"])
@pytest.mark.parametrize("call", [lsp.generate, lambda *a, **k: next(lsp.stream(*a, **k))], ids=["generate", "stream"])
def test_what_is_not_supported_is_never_ignored(tokenizer, call: Callable, name: str) -> None:
    with pytest.raises(TypeError, match=f"Invalid {name}: not supported; expected options among block_length"):
        call(writes(tokenizer, "a"), [0], tokenizer=tokenizer, **{name: None})


@pytest.mark.abuse("prompts and generation")
@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"scheduler": "best"}, ValueError, "Invalid scheduler: expected one of lsp, .*prophet.*, got 'best'"),
        (
            {"scheduler": lsp.Full},
            TypeError,
            "Invalid scheduler: expected a scheduler, its name or a function, got <class",
        ),
        ({"scheduler": 3}, TypeError, "Invalid scheduler: expected a scheduler, its name or a function, got 3"),
        ({"scheduler": "prophet", "lookahead": 4}, ValueError, "Invalid lookahead: expected None with Prophet"),
        ({"max_new_tokens": -1}, ValueError, "Invalid max_new_tokens: expected an integer from 0"),
        ({"max_new_tokens": 2.5}, TypeError, "Invalid max_new_tokens: expected an integer, got 2.5"),
        ({"stop": ""}, ValueError, "Invalid stop: expected texts that are not empty"),
        ({"stop": ["a", 3]}, ValueError, "Invalid stop: expected texts"),
        ({"vocabulary": Vocabulary(5)}, ValueError, r"Invalid vocabulary: expected the model's \d+ ids, got 5"),
        ({"cache": "dual"}, ValueError, "Invalid cache"),
    ],
)
def test_wrong_arguments_are_named(tokenizer, given: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        generate(writes(tokenizer, "a"), tokenizer, **given)


@pytest.mark.abuse("prompts and generation")
def test_wrong_prompts_are_named(tokenizer) -> None:
    size, mask = len(tokenizer), tokenizer.mask_token_id
    model = lsp.adapt(torch.nn.Embedding(size, size), vocab_size=size, mask_id=mask, max_length=16)

    def fails(prompts: object, message: str, new: int = 4) -> None:
        with pytest.raises(ValueError, match=message):
            lsp.generate(model, prompts, tokenizer=tokenizer, max_new_tokens=new)

    fails([[1] * 12, [1, mask] * 6 + [1]], r"Invalid max_new_tokens: expected at most 3 \(prompts\[1\] has 13 tokens")
    fails([[1, size]], rf"Invalid prompts\[0\]\[1\]: expected an id from 0 to {size - 1}, got {size}")
    fails([[1, -1]], "expected an integer from 0")
    fails([[1], [1] * 17], r"Invalid prompts\[1\]: expected at most 16 tokens, got 17", new=0)
    fails(
        [[1] * 10],
        r"Invalid max_new_tokens: expected at most 6 \(prompts\[0\] has 10 tokens, the context 16\), got 7",
        7,
    )
    (answer,) = lsp.generate(model, [[1] * 10], max_new_tokens=6)  # without a tokenizer nothing is a stop
    assert len(answer.tokens) == 6
    without = lsp.adapt(torch.nn.Embedding(9, 9), vocab_size=9)
    with pytest.raises(ValueError, match="Invalid model: expected a mask id in its config, got none"):
        lsp.generate(without, [1], scheduler="full")
    with pytest.raises(ValueError, match="Invalid prompt: expected a single one"):
        next(lsp.stream(model, ["a", "b"], tokenizer=tokenizer, max_new_tokens=4))


@pytest.mark.abuse("prompts and generation")
def test_a_request_that_does_not_fit_is_refused_at_once(tmp_path: Path) -> None:
    case = llada(max_sequence_length=2**31 - 1)
    model = lsp.load(case.save(tmp_path))
    with pytest.raises(MemoryError, match=r"Invalid capacity: expected room for .*, \d+ bytes, got \d+ free on"):
        lsp.generate(model, [9], max_new_tokens=2**30, scheduler="full")


@pytest.mark.abuse("prompts and generation")
def test_nan_in_a_batch_is_an_error_with_what_was_committed(tokenizer) -> None:
    model = writes(tokenizer, "abcdefgh")
    inner = model.run

    def broken(ids: Tensor) -> Tensor:
        masks = int((ids == tokenizer.mask_token_id).sum())
        return inner(ids) * (float("nan") if ids[0, 0] == 7 and masks == 4 else 1.0)

    model.run = broken
    with pytest.raises(lsp.DecodingError, match="NaN in sequence 1, pass 2") as caught:
        lsp.generate(model, [[0], [7]], tokenizer=tokenizer, scheduler=lsp.FixedPrefix(2), max_new_tokens=8)
    kept = [tokenizer.decode(canvas.run.tolist()) for canvas in caught.value.progress.canvases]
    assert kept == ["abcd", "abcd"]
    (after,) = lsp.generate(model, [0], tokenizer=tokenizer, max_new_tokens=8)
    assert after.text == "abcdefgh"


@pytest.mark.abuse("prompts and generation")
def test_an_interrupt_leaves_the_model_usable(tokenizer) -> None:
    model = writes(tokenizer, "abcdefgh")
    inner, calls = model.run, []

    def interrupted(ids: Tensor) -> Tensor:
        calls.append(0)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return inner(ids)

    model.run = interrupted
    pieces = lsp.stream(model, [0], tokenizer=tokenizer, scheduler=lsp.FixedPrefix(2), max_new_tokens=8)
    assert next(pieces) == "ab"
    with pytest.raises(KeyboardInterrupt):
        next(pieces)
    assert "".join(lsp.stream(model, [0], tokenizer=tokenizer, max_new_tokens=8)) == "abcdefgh"


def test_a_bar_shows_the_progress(tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    rich = pytest.importorskip("rich.progress")
    shown = []
    monkeypatch.setattr(rich.Progress, "update", lambda self, task, completed: shown.append(completed))
    generate(writes(tokenizer, "x" * 9), tokenizer, scheduler=lsp.FixedPrefix(3), max_new_tokens=8, progress=True)
    assert shown == [3, 6, 8]
