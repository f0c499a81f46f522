"""Masks inside a prompt: what a pass covers, what freezes, stops in holes, transformers with gaps, and texts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import lsp
from lsp.models import Transformer
from lsp.prompts import encode
from lsp.tracing import html, terminal
from lsp_kernels import Vocabulary
from tests.lsp.checkpoints import DECODED, Case, ids_of
from tests.lsp.recorder import SCHEDULERS, Recorder, last, scripted

transformers = pytest.importorskip("transformers")

CASES = {name: make() for name, make in DECODED.items()}
SIZE, M = 20, 19  # ids 0 to 18, and the mask
MASK = 7  # of the random checkpoints


@pytest.fixture(params=CASES, scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def typist(text: dict[int, int], margin: float = 5.0, **config: object) -> Recorder:
    """A model that predicts these tokens at these positions, elsewhere token 0."""

    def rows(ids: list[int]) -> np.ndarray:
        z = np.zeros((len(ids) + 1, SIZE), dtype=np.float32)
        for p in range(len(ids) + 1):
            z[p, text.get(p, 0)] = margin
        return z[1:] if config.get("shifted") else z[:-1]

    return scripted(rows, SIZE, M, **config)


def decode(model: Recorder, prompts: list[list[int]], new: int, scheduler: object, **options: object):
    known = Vocabulary(SIZE, [2], options.pop("stops", ()))
    return last(lsp.decode(model, prompts, new, scheduler, known, lsp.Options(**options)))


def layout(model: Recorder) -> list[tuple[list[int], int]]:
    """Per pass the positions and how many of them were appended."""
    return [(step[0].positions, step[0].append) for step in model.passes]


def test_a_pass_leaves_out_masks_and_never_what_is_given() -> None:
    model = typist({p: p for p in range(12)})
    state = decode(model, [[15, M, M, 16, M, 17, 18]], 2, lsp.FixedPrefix(1), lookahead=1)
    (canvas,) = state.canvases
    assert canvas.run.tolist() == [1, 2, 16, 4, 17, 18, 7, 8]
    assert canvas.committed_in.tolist() == [-1, 0, 1, -1, 2, -1, -1, 3, 4]
    assert layout(model) == [
        ([0, 1, 3, 5, 6], 1),  # masks 2, 4, 7 and 8 are left out
        ([1, 2, 3, 5, 6], 1),
        ([2, 3, 4, 5, 6], 2),  # the hole is filled, and what was given after it freezes with it
        ([4, 5, 6, 7], 3),
        ([7, 8], 1),
    ]
    assert model.slots[-1][0] == {p: (by, t) for p, by, t in [
        (0, 0, 15), (1, 1, 1), (2, 2, 2), (3, 2, 16), (4, 3, 4), (5, 3, 17), (6, 3, 18), (7, 4, 7)
    ]}  # fmt: skip


def test_the_token_before_a_hole_stays_in_the_pass_of_a_shifted_model() -> None:
    model = typist({p: p for p in range(12)}, shifted=True)
    state = decode(model, [[15, 16, M, 17, M]], 0, lsp.FixedPrefix(1))
    assert state.canvases[0].run.tolist() == [2, 17, 4]
    assert layout(model) == [([0, 1, 2, 3, 4], 1), ([1, 2, 3, 4], 2)]


@pytest.mark.abuse("prompts and generation")
def test_position_0_of_a_shifted_model_cannot_be_filled() -> None:
    message = r"Invalid prompts\[1\]\[0\]: expected a token, as the model's logits are shifted .*, got the mask id 19"
    with pytest.raises(ValueError, match=message):
        decode(typist({}, shifted=True), [[15, M], [M, 15]], 0, lsp.Full())
    assert decode(typist({0: 4}), [[M, 15]], 0, lsp.Full()).canvases[0].run.tolist() == [4, 15]


@pytest.mark.parametrize("scheduler", [lsp.Full(), lsp.FixedPrefix(9), lsp.LongestStablePrefix()], ids=repr)
def test_a_stop_in_a_hole_ends_what_is_appended_and_nothing_else(scheduler: object) -> None:
    text, prompt = {1: 17, 2: 3, 4: 4, 6: 6, 7: 7}, [15, M, M, 16, M, 16]
    state = decode(typist(text), [prompt], 3, scheduler, stops=[17])
    assert state.canvases[0].run.tolist() == [17, 3, 16, 4, 16]
    state = decode(typist(text), [prompt], 3, scheduler, stops=[17], stop_early=False)
    assert state.canvases[0].run.tolist() == [17, 3, 16, 4, 16, 6, 7, 0]
    state = decode(typist({1: 3, 7: 17}), [prompt], 3, scheduler, stops=[17])
    assert state.canvases[0].run.tolist() == [3, 0, 16, 0, 16, 0, 17]


def test_a_stop_in_a_hole_is_a_scattered_token_like_any_other() -> None:
    """It drops nothing there, so what is frozen before it has to see it; in the tail it ends the text."""

    def rows(ids: list[int]) -> np.ndarray:
        z = np.zeros((len(ids), SIZE), dtype=np.float32)
        z[:, 17] = 1 + np.arange(len(ids))  # stops everywhere, the last one surest
        return z

    for prompt, new, held in ([15, M, 16, M, 16], 0, [0, 0]), ([15, M, 16], 2, [0, 1, 1]):
        model = scripted(rows, SIZE, M)
        decode(model, [prompt], new, lsp.Full(), stops=[17], refresh_scattered=True)
        assert [segment.held for (segment,) in model.passes] == held


def test_masks_at_the_end_of_a_prompt_are_as_appended_ones() -> None:
    asked, appended = (
        decode(model, [prompt], new, lsp.Full(), stops=[17]).canvases[0]
        for model, prompt, new in [(typist({2: 17}), [15, M, M, M], 1), (typist({2: 17}), [15], 4)]
    )
    assert asked.run.tolist() == appended.run.tolist() == [0, 17]
    assert [hole.tolist() for hole in asked.holes] == [[1, 2]]


def test_blocks_are_counted_from_the_first_mask() -> None:
    model = typist({p: p for p in range(12)})
    state = decode(model, [[15, M, 16, M, M, M]], 1, lsp.FixedPrefix(9), block_length=2, cache="block")
    assert state.canvases[0].committed_in.tolist() == [-1, 0, -1, 1, 1, 2, 2]
    assert [append for _, append in layout(model)] == [1, 3, 5]


def in_pieces(case: Case, seed: int = 3) -> list[list[int]]:
    """Prompts of different lengths with holes of different lengths."""
    out = []
    for n, holes in ((14, [(1, 4), (7, 9)]), (3, [(2, 3)]), (11, []), (17, [(4, 5), (6, 12), (15, 17)])):
        ids = ids_of(case, n, seed=seed + n)
        for begin, end in holes:
            ids[begin:end] = [MASK] * (end - begin)
        out.append(ids)
    return out


@pytest.mark.parametrize("options", [{}, {"lookahead": 2}, {"block_length": 3, "lookahead": 1}], ids=str)
@pytest.mark.parametrize("name", ["guarded", "islands", "topk"])
def test_uncached_passes_are_the_plain_model_at_these_positions(
    case: Case, exact: Transformer, name: str, options: dict
) -> None:
    prompts, recorder = in_pieces(case), Recorder(exact)
    known = Vocabulary(case.vocab_size, range(0, 200, 5), [5])
    last(lsp.decode(recorder, prompts, 5, SCHEDULERS[name], known, lsp.Options(cache="none", **options)))
    gaps = 0
    for segments in recorder.passes:
        for segment in segments:
            if segment.tokens:
                expected = case.logits(segment.tokens, positions=segment.positions)
                torch.testing.assert_close(segment.logits, expected, rtol=0, atol=1e-9 * max(1, float(expected.std())))
                gaps += segment.positions != list(range(len(segment.positions)))
    assert (gaps > 0) == bool(options)


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize(
    "options",
    [{}, {"lookahead": 2}, {"block_length": 4, "cache": "block"}, {"refresh_every": 2, "temperature": 0.7}],
    ids=str,
)
def test_a_ragged_batch_is_each_prompt_alone(case: Case, exact: Transformer, options: dict, graph: bool) -> None:
    prompts, known = in_pieces(case), Vocabulary(case.vocab_size, range(0, 200, 5), range(100, 120))
    given = lsp.Options(**options, graph=graph)
    scheduler, seeds = SCHEDULERS["islands"], [5, 6, 7, 8]
    together = last(lsp.decode(exact, prompts, 6, scheduler, known, given, seeds, 2)).canvases
    for prompt, seed, canvas in zip(prompts, seeds, together, strict=True):
        (alone,) = last(lsp.decode(exact, [prompt], 6, scheduler, known, lsp.Options(**options), [seed])).canvases
        assert canvas.run.tolist() == alone.run.tolist()
        assert canvas.committed_in.tolist() == alone.committed_in.tolist()
        assert (canvas.passes, canvas.positions) == (alone.passes, alone.positions)
        kept = [token for token in prompt if token != MASK]
        assert canvas.tokens[canvas.given].tolist() == kept
    assert len({token for canvas in together for token in canvas.run.tolist()}) > 10


@pytest.fixture(scope="module")
def tiny() -> Transformer:
    return lsp.load("tiny")


PROMPT = "Use 3, 5 and 7 to make 15.\nFirst 7 + 5 =<mask:1>, then<mask:1> +<mask:1> = 15."


def test_a_marker_is_filled_and_the_text_begins_there(tiny: Transformer) -> None:
    (answer,) = lsp.generate(tiny, PROMPT)
    assert answer.text == " 12, then 12 + 3 = 15."
    assert [fill.text for fill in answer.fills] == [" 12", " 12", " 3"]
    assert [len(fill.tokens) for fill in answer.fills] == [1, 1, 1]
    assert sum(number >= 0 for number in answer.committed_in) == sum(answer.commits) == 3
    assert answer.tokens_per_pass == 3 / answer.passes
    assert not answer.finished
    (same,) = lsp.generate(tiny, PROMPT, cache="none")
    assert same.tokens == answer.tokens
    assert "".join(lsp.stream(tiny, PROMPT, lookahead=1, scheduler="full")) == answer.text
    (more,) = lsp.generate(tiny, PROMPT, max_new_tokens=4, logprobs=True)
    assert more.tokens[: len(answer.tokens)] == answer.tokens
    assert more.finished
    assert np.isnan(more.logprobs).tolist() == [number < 0 for number in more.committed_in]


def test_what_is_streamed_is_a_prefix_of_the_end(tiny: Transformer) -> None:
    pieces = list(lsp.stream(tiny, PROMPT, scheduler="full", lookahead=None))
    assert "".join(pieces) == " 12, then 12 + 3 = 15."
    fed = []

    class Streamer:
        def put(self, ids: torch.Tensor) -> None:
            fed.append(ids.flatten().tolist())

        def end(self) -> None:
            fed.append("end")

    (answer,) = lsp.generate(tiny, PROMPT, streamer=Streamer())
    before = encode(PROMPT.partition("<")[0], lsp.load_tokenizer(tiny))
    assert fed[0] == before
    assert [token for tokens in fed[1:-1] for token in tokens] == answer.tokens


def test_a_stop_string_counts_after_the_last_given_token(tiny: Transformer) -> None:
    prompt = PROMPT.partition(", then")[0] + ", then"
    (answer,) = lsp.generate(tiny, prompt, max_new_tokens=16, stop=["12", " ="])
    assert answer.text == " 12, then "
    assert answer.finished
    assert "".join(lsp.stream(tiny, prompt, max_new_tokens=16, stop=["12"], scheduler="full")) == " 12, then "


def test_a_trace_shows_the_holes(tiny: Transformer, tmp_path) -> None:
    (trace,) = lsp.trace(tiny, PROMPT, max_new_tokens=2)
    assert trace.tokens == lsp.generate(tiny, PROMPT, max_new_tokens=2)[0].tokens
    assert set(trace.committed_in) >= {-1, 0}
    trace.save(tmp_path / "trace.jsonl")
    assert lsp.Trace.load(tmp_path / "trace.jsonl") == trace
    assert trace.prompt == encode(PROMPT.partition("<")[0], lsp.load_tokenizer(tiny))
    shown = terminal.answer([trace.pieces[token] for token in trace.tokens], trace.committed_in).plain
    assert shown.startswith("[1] 12, then[1] 12 +[1] 3 = 15.")
    assert "committed_in" in html.page([trace])


def test_prompts_say_how_many_masks_follow(tiny: Transformer) -> None:
    assert len(lsp.generate(tiny, PROMPT)[0].tokens) == 9
    with pytest.raises(ValueError, match="Invalid max_new_tokens: expected a number, as only some of the prompts"):
        lsp.generate(tiny, [PROMPT, "Use 3, 5 and 7 to make 15.\n"])
    both = lsp.generate(tiny, [PROMPT, "Use 3, 5 and 7 to make 15.\n"], max_new_tokens=32)
    assert both[1].text == "First 7 + 5 = 12, then 12 + 3 = 15."
    assert (len(both[0].fills), both[1].fills) == (3, [])


class WithoutNames:
    def __call__(self, text: str) -> dict:
        return {"input_ids": [0] * len(text)}


class Misreading(WithoutNames):
    """Knows the mask by name, and does not find it in texts."""

    def convert_ids_to_tokens(self, token: int) -> str:
        return "+"


@pytest.mark.abuse("prompts and generation")
def test_markers_that_make_no_sense_are_named(tiny: Transformer) -> None:
    tokenizer = lsp.load_tokenizer(tiny)
    assert encode("<mask:2><mask>a<mask:3>", tokenizer, 0).count(0) == 6
    assert encode("<mask:2", tokenizer, 0).count(0) == 0
    for text in ("<mask:0>", "a<mask:1048577>", f"<mask:{'9' * 5000}>"):
        with pytest.raises(ValueError, match="Invalid marker: expected from 1 to 1048576 masks, got <mask:"):
            lsp.generate(tiny, text)
    with pytest.raises(ValueError, match=r"Invalid prompts\[0\]: expected at most \d+ tokens, got 1048576"):
        lsp.generate(tiny, "<mask:1048576>")
    with pytest.raises(ValueError, match="Invalid prompts: expected at most 1048576 masks in a text, got 1048577"):
        lsp.generate(tiny, "<mask:1048576> and <mask:1>")
    with pytest.raises(ValueError, match="expected ids with the mask id in them, or a tokenizer with convert_ids"):
        encode("<mask:2>", WithoutNames(), 0)
    with pytest.raises(ValueError, match="expected no marker, as the model has no mask id"):
        encode("<mask:2>", tokenizer, None)
    with pytest.raises(ValueError, match=r"expected a tokenizer that reads '\+' as the mask id \d+ wherever a marker"):
        encode("x<mask:2>", Misreading(), 4)


def test_an_adapted_model_sees_the_masks_that_a_pass_leaves_out_where_they_stand() -> None:
    seen = []

    def rows(ids: list[int]) -> np.ndarray:
        seen.append(ids)
        return np.eye(SIZE, dtype=np.float32)[np.arange(len(ids)) % M]

    decode(scripted(rows, SIZE, M), [[15, M, M, 16, M]], 0, lsp.FixedPrefix(1), lookahead=1)
    assert seen == [[15, M, M, 16], [15, 1, M, 16], [15, 1, 2, 16, M]]


@pytest.mark.abuse("models and checkpoints")
def test_positions_that_an_adapted_model_cannot_place_are_named() -> None:
    model = lsp.adapt(torch.nn.Embedding(SIZE, SIZE), vocab_size=SIZE, mask_id=M)
    border = torch.tensor([0, 2], dtype=torch.int32)
    for places in ([1, 2], [0, 0], [0, -1]):
        with pytest.raises(ValueError, match="Invalid positions"):
            model(torch.tensor([3, 4]), torch.tensor(places), border)
    assert model(torch.tensor([3, 4]), torch.tensor([0, 5]), border).shape == (2, SIZE)
    nameless = lsp.adapt(torch.nn.Embedding(SIZE, SIZE), vocab_size=SIZE)
    with pytest.raises(ValueError, match="Invalid positions of sequence 0: expected no gaps without a mask id"):
        nameless(torch.tensor([3, 4]), torch.tensor([0, 5]), border)
