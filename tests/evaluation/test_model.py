"""The model "lsp" of lm-eval, asked directly: text up to a stop, likelihoods, counts, and what it refuses."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lm_eval", reason="needs lm-eval: make test-eval")

from lm_eval.api.model import CacheHook, CachingLM
from lm_eval.api.registry import get_model

import lsp
from lsp.evaluation.likelihood import log_likelihoods
from lsp.integrations import lm_eval as module
from lsp.integrations.lm_eval import Harness
from tests.evaluation.runs import generation, likelihood, run
from tests.evaluation.scripted import scripted, tokenizer

pytestmark = pytest.mark.evaluation
PROMPTS = [
    "Use 3, 5 and 7 to make 15.\n",
    "Solve the sudoku:\n3_42\n24_1\n_213\n1324\n",
    "Use 2, 9 and 14 to make 21.\n",
    "Tom has 5 coins. He buys 7 more. He loses 2 coins. He doubles them. How many coins does Tom have now?\n",
]


class Stopped(Exception):
    pass


@pytest.fixture(scope="module")
def model() -> Any:
    return lsp.load("tiny")


@pytest.fixture
def harness(model: Any) -> Harness:
    return Harness(model, batch_size=2)


def counted(harness: Harness) -> dict[str, list[int]]:
    return harness.get_model_info()["lsp"]["counts"]["task"]["by_document"]


# Text


def test_it_says_what_generate_says_in_one_call_that_keeps_the_batch_full(
    model: Any, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, original = [], module.Run
    monkeypatch.setattr(module, "Run", lambda *given, **named: calls.append(named) or original(*given, **named))
    requests = [generation(prompt, i, max_gen_toks=96) for i, prompt in enumerate(PROMPTS)]
    texts = harness.generate_until(requests)
    monkeypatch.undo()
    answers = lsp.generate(model, PROMPTS, max_new_tokens=96)
    assert texts == [answer.text for answer in answers]
    assert [call["batch_size"] for call in calls] == [2]
    assert counted(harness)["passes"] == [answer.passes for answer in answers]


def test_requests_that_ask_for_different_things_are_answered_in_their_order(model: Any, harness: Harness) -> None:
    stops = [[], ["+"], [","], ["+"]]
    requests = [generation(p, i, until=u, max_gen_toks=40) for i, (p, u) in enumerate(zip(PROMPTS, stops, strict=True))]
    expected = [
        lsp.generate(model, prompt, stop=until, max_new_tokens=40)[0].text
        for prompt, until in zip(PROMPTS, stops, strict=True)
    ]
    assert harness.generate_until(requests) == expected
    assert expected[1].count("\n") == 3


@pytest.mark.parametrize(
    ("until", "text"),
    [
        pytest.param("ten.", "One two three. Four ", id="a text"),
        pytest.param(["Four", "two"], "One ", id="the first of several"),
        pytest.param(["e. F"], "One two thre", id="across tokens"),
        pytest.param(["nowhere", ""], "One two three. Four ten. Six", id="none of it"),
        pytest.param(["<|im_end|>"], "One two three. Four ten. Six", id="a special token that does not come"),
    ],
)
def test_a_text_ends_before_its_first_stop(until: Any, text: str) -> None:
    harness = scripted(lambda prompt: "One two three. Four ten. Six")
    assert harness.generate_until([generation("Count:", until=until)]) == [text]
    assert harness.generate_until([generation("Count:", until=[])]) == ["One two three. Four ten. Six"]


def test_a_stop_that_is_a_special_token_ends_the_text_though_it_never_shows() -> None:
    harness = scripted(lambda prompt: "One two<|turn|> three")
    assert harness.generate_until([generation("Count:", until=[])]) == ["One two three"]
    assert harness.generate_until([generation("Count:", until=["<|turn|>"])]) == ["One two"]


def test_stops_of_the_model_come_beside_those_of_the_task() -> None:
    harness = scripted(lambda prompt: "One two three", stop="three")
    assert harness.generate_until([generation("Count:", until=["four"])]) == ["One two "]
    assert harness.generate_until([generation("Count:", until=["two"])]) == ["One "]


def test_a_stop_saves_passes_and_positions(model: Any, harness: Harness) -> None:
    harness.generate_until([generation(PROMPTS[3], 0, max_gen_toks=96)])
    whole = counted(harness)
    harness.generate_until([generation(PROMPTS[3], 0, until=["."], max_gen_toks=96)])
    cut = counted(harness)
    assert all(cut[name][0] < whole[name][0] for name in ("tokens", "passes", "positions"))


def test_the_length_is_that_of_the_model_then_of_the_task_then_256(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def stopped(*_: Any, max_new_tokens: int, **__: Any) -> None:
        asked.append(max_new_tokens)
        raise Stopped

    monkeypatch.setattr(module, "Run", stopped)
    for own, task in ((20, {"max_gen_toks": 30}), (None, {"max_gen_toks": 30}), (None, {})):
        harness = Harness(model, max_new_tokens=own)
        monkeypatch.setattr(harness, "_check_length", lambda request, length: None)
        with pytest.raises(Stopped):
            harness.generate_until([generation("x", **task)])
    assert asked == [20, 30, 256]


def test_noise_belongs_to_the_document_whatever_the_order_and_the_batch(model: Any) -> None:
    noisy = {"do_sample": True, "temperature": 3.0, "max_gen_toks": 24}
    requests = [generation(prompt, i, **noisy) for i, prompt in enumerate(PROMPTS)]
    texts = Harness(model, batch_size=4).generate_until(requests)
    assert Harness(model, batch_size=1).generate_until(requests[::-1])[::-1] == texts
    assert Harness(model, seed=1).generate_until(requests) != texts
    first, second = Harness(model).generate_until([generation(PROMPTS[0], repeats=2, **noisy)] * 2)
    assert first != second


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"num_beams": 4},
            "Invalid generation argument: expected until, max_gen_toks, do_sample or temperature, got num",
        ),
        ({"do_sample": True, "temperature": 0.7, "top_p": 0.9}, "got top_p"),
        ({"do_sample": True, "temperature": -1.0}, "Invalid temperature: expected at least 0, got -1.0"),
        ({"max_gen_toks": 0}, "Invalid max_gen_toks: expected an integer from 1"),
        (
            {"max_gen_toks": 250},
            "Invalid length of document 5 of task: expected at most 256 tokens with its answer, got",
        ),
    ],
)
def test_what_generation_cannot_do_is_refused(harness: Harness, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        harness.generate_until([generation(PROMPTS[0], 5, **arguments)])


def test_settings_of_sampling_mean_nothing_without_a_temperature(harness: Harness) -> None:
    greedy = {"do_sample": False, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "max_gen_toks": 32}
    assert harness.generate_until([generation(PROMPTS[0], **greedy)]) == ["First 7 + 5 = 12, then 12 + 3 = 15."]


# Likelihoods


def test_likelihoods_are_those_of_the_estimate_with_spaces_on_the_side_of_the_continuation(harness: Harness) -> None:
    words = harness.tokenizer
    context, continuation = words("Use 3, 5 and 7 to make 15.")["input_ids"], words("\nFirst 7 + 5")["input_ids"]
    requests = [
        likelihood("Use 3, 5 and 7 to make 15.\n", "First 7 + 5"),
        likelihood("Use 3, 5 and 7 to make 15.", "\nFirst 7 + 5"),
    ]
    (expected,) = log_likelihoods(harness.model, [(context, continuation)])
    for value, _ in harness.loglikelihood(requests):
        assert value == pytest.approx(expected.value, rel=1e-5)


def test_the_right_answer_is_more_likely_than_wrong_ones(harness: Harness) -> None:
    choices = ["First 7 + 5 = 12, then 12 + 3 = 15.", "First 7 - 5 = 12, then 12 * 3 = 15.", "Selling half leaves 5."]
    values = [value for value, _ in harness.loglikelihood([likelihood(PROMPTS[0], choice) for choice in choices])]
    assert values[0] > values[1] > values[2]


def token_by_token(model: Any, ids: list[int], length: int) -> list[int]:
    """Written out: every pass computes everything and fills the most confident mask."""
    mask = model.config.mask_id
    row = torch.tensor([*ids, *[mask] * length])
    for _ in range(length):
        masks = (row == mask).nonzero()[:, 0]
        hidden = model(row, torch.arange(len(row)), torch.tensor([0, len(row)], dtype=torch.int32))
        logits = model.lm_head(hidden[masks])
        logits[:, mask] = -torch.inf
        best, tokens = logits.softmax(-1).max(-1)
        row[masks[best.argmax()]] = tokens[best.argmax()]
    return row[len(ids) :].tolist()


BEGUN = "Use 3, 5 and 7 to make 15.\nFirst 7 + 5 = 12, then 12"


def greedy_of(harness: Harness, length: int) -> str:
    """A continuation that decoding token by token gives."""
    ids = harness.tokenizer(BEGUN)["input_ids"]
    target = token_by_token(harness.model, ids, length)
    text = harness.tokenizer.decode(target)
    assert harness.tokenizer(BEGUN + text)["input_ids"] == [*ids, *target]
    return text


@pytest.mark.parametrize("length", [1, 2, 5])
def test_greedy_is_what_decoding_token_by_token_gives(harness: Harness, length: int) -> None:
    text = greedy_of(harness, length)
    others = [text + " 7", " - 3 = 15.", " def"]
    requests = [likelihood(BEGUN, each) for each in (text, *others)]
    assert [greedy for _, greedy in harness.loglikelihood(requests)] == [True, False, False, False]


def test_the_check_can_be_left_out_and_then_says_no(model: Any, harness: Harness) -> None:
    request = likelihood(BEGUN, greedy_of(harness, 2))
    ((value, greedy),) = Harness(model, check_greedy=False).loglikelihood([request])
    ((same, yes),) = harness.loglikelihood([request])
    assert (value, greedy, yes) == (pytest.approx(same), False, True)


def test_the_counts_of_a_likelihood_are_its_draws_and_the_check(model: Any) -> None:
    requests = [likelihood(PROMPTS[0], " First", 0, 0), likelihood(PROMPTS[0], "def f", 0, 1)]
    length = len(lsp.load_tokenizer("tiny")(PROMPTS[0])["input_ids"])
    bare = Harness(model, check_greedy=False, mc_num=200)
    bare.loglikelihood(requests)
    assert counted(bare)["doc_id"] == [0]
    sizes = [len(bare.words.encode_pair(*request.args)[1]) for request in requests]
    first = len(bare.words.encode_pair(*requests[0].args)[0])
    draws = [2**size - 1 for size in sizes]
    assert counted(bare)["tokens"] == [sum(sizes)]
    assert counted(bare)["passes"] == [sum(draws)]
    assert counted(bare)["positions"] == [sum(n * (first + size) for n, size in zip(draws, sizes, strict=True))]
    assert first <= length
    checked = Harness(model, mc_num=200)
    checked.loglikelihood(requests)
    assert counted(checked)["passes"] == [sum(draws) + sum(sizes)]


def test_a_context_may_be_empty(harness: Harness) -> None:
    ((value, _),) = harness.loglikelihood([likelihood("", "Use 3")])
    (expected,) = log_likelihoods(harness.model, [([], harness.tokenizer("Use 3")["input_ids"])])
    assert value == pytest.approx(expected.value)


def test_rolling_likelihoods_are_refused_with_the_reason(harness: Harness) -> None:
    with pytest.raises(NotImplementedError, match="not defined for a masked diffusion model"):
        harness.loglikelihood_rolling([])


# Counts


@pytest.mark.parametrize("kind", ["generate_until", "loglikelihood"])
def test_padding_is_answered_but_neither_computed_nor_counted(model: Any, kind: str) -> None:
    make = (
        (lambda i: generation(PROMPTS[i], i, max_gen_toks=24))
        if kind == "generate_until"
        else (lambda i: likelihood(PROMPTS[i], "First 7", i))
    )
    requests = [make(i) for i in (0, 2)]
    alone, padded = Harness(model), Harness(model)
    answers = getattr(alone, kind)(requests)
    assert getattr(padded, kind)([*requests, requests[1], requests[1]]) == [*answers, answers[1], answers[1]]
    assert counted(padded) == counted(alone)


def test_counts_are_those_of_the_last_run(harness: Harness) -> None:
    harness.generate_until([generation(PROMPTS[0], 0, max_gen_toks=24), generation(PROMPTS[2], 1, max_gen_toks=24)])
    assert counted(harness)["doc_id"] == [0, 1]
    harness.generate_until([generation(PROMPTS[0], 0, max_gen_toks=24)])
    assert counted(harness)["doc_id"] == [0]


def test_answers_from_the_cache_of_lm_eval_cost_nothing_and_count_nothing(tmp_path) -> None:
    given = {"model_args": {"pretrained": "tiny"}, "limit": 2, "use_cache": str(tmp_path / "answers")}
    first, second = (run("lsp_tiny_countdown", **given) for _ in range(2))
    assert first["config"]["lsp"]["counts"]["lsp_tiny_countdown"]["documents"] == 2
    assert second["config"]["lsp"]["counts"] == {}
    assert first["results"] == second["results"]


def stopping_after(count: int, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """lm-eval's cache takes so many answers and then the run ends; returns what it has taken."""
    taken: list[Any] = []
    add = CacheHook.add_partial

    def add_some(hook: CacheHook, name: str, request: Any, answer: Any) -> None:
        if len(taken) == count:
            raise Stopped
        taken.append(request)
        add(hook, name, request, answer)

    monkeypatch.setattr(CacheHook, "add_partial", add_some)
    return taken


@pytest.mark.parametrize("kind", ["generate_until", "loglikelihood"])
def test_a_run_that_was_stopped_goes_on_from_the_cache_of_lm_eval(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 2)
    requests = {
        "generate_until": [generation(prompt, i, max_gen_toks=24) for i, prompt in enumerate(PROMPTS)],
        "loglikelihood": [likelihood(prompt, " 3", i) for i, prompt in enumerate(PROMPTS)],
    }[kind]

    def cached() -> Any:
        return CachingLM(Harness("tiny", batch_size=1, mc_num=4), str(tmp_path / "answers.db"))

    with monkeypatch.context() as patch:
        taken = stopping_after(2, patch)
        with pytest.raises(Stopped):
            getattr(cached(), kind)(requests)
        assert len(taken) == 2
    again = cached()
    answers = getattr(again, kind)(requests)
    (counts,) = again.lm.counts.summary().values()
    assert counts["documents"] == len(PROMPTS) - 2  # the others came from the cache
    assert answers == getattr(Harness("tiny", batch_size=1, mc_num=4), kind)(requests)


# Chats


def test_chats_go_through_the_template_of_the_model() -> None:
    harness = scripted(lambda prompt: "")
    chat = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because"}]
    assert harness.apply_chat_template(chat[:1]) == "[user]Why?[assistant]"
    assert harness.apply_chat_template(chat, add_generation_prompt=False) == "[user]Why?[assistant]Because"
    assert harness.chat_template(True) == tokenizer().chat_template
    assert harness.chat_template(False) is None


def test_a_text_that_begins_with_the_first_token_gets_no_second_one() -> None:
    from tokenizers.processors import TemplateProcessing

    harness = scripted(lambda prompt: "")
    words = harness.tokenizer
    words.bos_token = "<|im_end|>"
    pieces = [("<|im_end|>", words.bos_token_id)]
    words.backend_tokenizer.post_processor = TemplateProcessing(single="<|im_end|> $A", special_tokens=pieces)
    once = [words.bos_token_id, *words("Hello", add_special_tokens=False)["input_ids"]]
    assert harness.words.encode("Hello") == harness.words.encode("<|im_end|>Hello") == once


# Arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("pretrained=tiny,scheduler=best", "Invalid scheduler: expected one of lsp, "),
        (
            "pretrained=tiny,scheduler=threshold,q=1",
            "Invalid setting 'q=1' of threshold: expected name=value with p=0.9",
        ),
        ("pretrained=tiny,scheduler=threshold,p=often", "Invalid p: expected a number, got 'often'"),
        ("pretrained=tiny,scheduler=threshold,p=2", "Invalid p: "),
        ("pretrained=tiny,max_new_tokens=0", "Invalid max_new_tokens: expected an integer from 1"),
        ("pretrained=tiny,max_new_tokens=many", "Invalid max_new_tokens: expected an integer, got 'many'"),
        ("pretrained=tiny,batch_size=auto", "Invalid batch_size: expected an integer of at least 1, got 'auto'"),
        ("pretrained=tiny,batch_size=0", "Invalid batch_size: expected an integer of at least 1, got 0"),
        ("pretrained=tiny,mc_num=0", "Invalid mc_num: expected an integer from 1"),
        ("pretrained=tiny,seed=-1", "Invalid seed: expected an integer from 0"),
        ("pretrained=tiny,check_greedy=maybe", "Invalid check_greedy: expected True or False, got 'maybe'"),
        ("pretrained=tiny,temperature=0.5", "Invalid temperature: expected it in gen_kwargs, beside do_sample, got it"),
        ("pretrained=tiny,block_length=0", "Invalid block_length: expected an integer from 1"),
        ("pretrained=tiny,cache=some", "Invalid cache: expected 'prefix', 'block', 'dual' or 'none', got 'some'"),
        (
            "pretrained=tiny,dtype=int4",
            "Invalid dtype: expected float32, bfloat16, float16, float64 or int8, got 'int4'",
        ),
        ("pretrained=tiny,delimiters=commas", "Invalid delimiters: expected "),
        (
            "pretrained=tiny,trust_remote_code=True",
            "Invalid setting 'trust_remote_code=True' of lsp: expected name=value",
        ),
        ("pretrained=tiny,device=gpu", "Invalid device: expected one such as cpu, cuda, cuda:1 or mps, got 'gpu'"),
        ("pretrained=./nowhere", "nowhere"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments: str, message: str) -> None:
    with pytest.raises((ValueError, TypeError, OSError)) as refused:
        get_model("lsp").create_from_arg_string(arguments)
    assert message in str(refused.value)


def test_arguments_come_as_text_as_lm_eval_hands_them_over() -> None:
    text = (
        "pretrained=tiny,scheduler=paper,alpha=0.1,snap=False,block_length=16,dtype=bfloat16,mc_num=4,delimiters=code"
    )
    harness = get_model("lsp").create_from_arg_string(text, {"batch_size": "3", "device": "cpu"})
    assert harness.scheduler.rule.alpha == 0.1
    assert harness.scheduler.rule.snap is False
    assert harness.options.block_length == 16
    assert (harness.batch_size, harness.mc_num, harness.model.dtype) == (3, 4, torch.bfloat16)
    assert (harness.rank, harness.world_size, harness.device) == (0, 1, torch.device("cpu"))


def test_a_model_without_a_tokenizer_is_refused() -> None:
    with pytest.raises(ValueError, match="Invalid pretrained: expected a folder with a tokenizer, got none"):
        Harness(lsp.adapt(torch.nn.Embedding(50, 50), mask_id=49, vocab_size=50))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_gpu_that_lm_eval_asks_for_by_default_is_the_cpu_where_there_is_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert Harness("tiny", device="cuda:0").device.type == "cpu"
    assert "no GPU here: the model runs on the CPU, not on cuda:0" in caplog.text
