"""OpenAI's questions: what comes back is what `lsp.generate` gives, in the form that its clients expect."""

from __future__ import annotations

from typing import Any

import pytest

from tests.play import serving
from tests.play.serving import PROMPT, answer, events, get, post, reason

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"


def asked(path: str, **more: Any) -> dict[str, Any]:
    """A question for the same answer in both forms."""
    if path == CHAT:
        return {"model": "tiny", "messages": [{"role": "user", "content": PROMPT}], **more}
    return {"model": "tiny", "prompt": f"{PROMPT}\n", **more}


def text_of(choice: dict[str, Any]) -> str:
    if "delta" in choice:
        return choice["delta"].get("content", "")
    return choice["message"]["content"] if "message" in choice else choice["text"]


@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_the_answer_is_that_of_generate_and_usage_says_what_it_cost(path: str) -> None:
    out = post(path, asked(path)).json()
    (choice,) = out["choices"]
    expected, (_, tokenizer) = answer(), serving.model()
    assert (text_of(choice), choice["finish_reason"]) == (expected.text, reason(expected))
    prompt, new = len(tokenizer(f"{PROMPT}\n")["input_ids"]), len(expected.tokens)
    counts = {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}
    assert out["usage"] == {**counts, "passes": expected.passes, "positions": expected.positions}


@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_a_stream_is_the_same_answer_in_pieces(path: str) -> None:
    told = events(post(path, asked(path, stream=True, stream_options={"include_usage": True})))
    assert told.pop() == "[DONE]"
    last = told.pop()
    whole = post(path, asked(path)).json()
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    pieces = [text_of(one["choices"][0]) for one in told]
    assert "".join(pieces) == answer().text
    assert sum(map(bool, pieces)) > 1
    assert [one["choices"][0]["finish_reason"] for one in told][-1] == reason(answer())
    assert len({one["id"] for one in told}) == 1


@pytest.mark.parametrize("path", [TEXT, CHAT])
@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_ends_the_answer_and_is_no_part_of_it(path: str, stream: bool) -> None:
    whole = answer().text or ""
    stop = whole[len(whole) // 2 :][:3]
    told = post(path, asked(path, stop=[stop, "zzz"], stream=stream))
    if stream:
        text = "".join(text_of(one["choices"][0]) for one in events(told) if one != "[DONE]")
    else:
        text = text_of(told.json()["choices"][0])
    assert text == whole.partition(stop)[0] != whole


def test_max_tokens_bounds_the_answer() -> None:
    for path, name in ((TEXT, "max_tokens"), (CHAT, "max_tokens"), (CHAT, "max_completion_tokens")):
        out = post(path, asked(path, **{name: 3})).json()
        assert out["usage"]["completion_tokens"] == 3
        assert out["choices"][0]["finish_reason"] == "length"


def test_a_seed_decides_what_a_temperature_draws() -> None:
    texts = [text_of(post(TEXT, asked(TEXT, temperature=1.5, seed=seed)).json()["choices"][0]) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_another_scheduler_costs_something_else() -> None:
    costs = [post(CHAT, asked(CHAT, **more)).json()["usage"] for more in ({}, {"scheduler": "full"})]
    assert costs[0]["completion_tokens"] == costs[1]["completion_tokens"]
    assert costs[0]["positions"] < costs[1]["positions"]


def test_holes_are_filled_and_each_token_is_counted_once() -> None:
    model, tokenizer = serving.model()
    mask = tokenizer.convert_ids_to_tokens(model.config.mask_id)
    prompt = f"{PROMPT}\nFirst{{}}, then 12 + 3 = 15."
    given = len(tokenizer(prompt.format(mask))["input_ids"]) - 1
    for hole in ("<mask:5>", mask * 5):
        out = post(TEXT, {"prompt": prompt.format(hole)}).json()
        (choice,), usage = out["choices"], out["usage"]
        assert choice["text"] == answer(prompt.format("<mask:5>"), max_new_tokens=None).text
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (given, 5, given + 5)
        assert choice["finish_reason"] == "stop"  # nothing was to follow


def test_what_follows_a_hole_is_cut_off_as_any_answer() -> None:
    out = post(TEXT, {"prompt": f"{PROMPT}\nFirst<mask:5>, then", "max_tokens": 3}).json()
    assert (out["choices"][0]["finish_reason"], out["usage"]["completion_tokens"]) == ("length", 8)


USUAL = {
    "parallel_tool_calls": True,
    "modalities": ["text"],
    "top_logprobs": 0,
    "n": 1,
    "frequency_penalty": 0.0,
    "tools": [],
    "response_format": {"type": "text"},
    "max_tokens": 96,
    "max_completion_tokens": 96,
}


def test_fields_may_say_what_is_usual() -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": PROMPT}]}]
    texts = [post(CHAT, asked(CHAT, messages=parts, **USUAL)), post(TEXT, asked(TEXT, prompt=[f"{PROMPT}\n"]))]
    assert [text_of(one.json()["choices"][0]) for one in texts] == [answer().text] * 2


def test_a_field_that_is_null_is_as_good_as_absent() -> None:
    """A client sends back what it was answered, and that has fields without a value."""
    answered = post(CHAT, asked(CHAT)).json()["choices"][0]["message"]
    assert None in answered.values()
    messages = [*asked(CHAT)["messages"], answered, *asked(CHAT)["messages"]]
    out = post(CHAT, asked(CHAT, messages=messages, top_logprobs=None))
    assert out.status_code == 200, out.text


def test_there_is_one_model() -> None:
    (model,) = get("/v1/models").json()["data"]
    assert model["id"] == "tiny"
    assert get("/v1/models/tiny").json() == model


NOWHERE = {
    "another model": ("/v1/models/gpt", {}, 404, "Invalid model: expected 'tiny', got 'gpt'"),
    "no path": ("/v1/embeddings", {}, 404, "Invalid path: got '/v1/embeddings'"),
    "a question that is no POST": (CHAT, {}, 405, "Invalid method: expected POST, got GET"),
    "another host": ("/v1/models", {"host": "evil.example"}, 403, "Invalid Host: expected localhost"),
}


@pytest.mark.abuse("playground")
@pytest.mark.parametrize("name", NOWHERE)
def test_errors_have_the_form_of_openai(name: str) -> None:
    path, headers, status, words = NOWHERE[name]
    refused = get(path, headers=headers)
    assert refused.status_code == status
    assert refused.json()["error"]["message"].startswith(words)
    assert refused.json()["error"]["type"] == "invalid_request_error"


def hears(*contents: Any) -> dict[str, Any]:
    """The messages of a chat."""
    return {"messages": [{"role": "user", "content": content} for content in contents]}


BAD = {
    "another model": (TEXT, {"model": "gpt"}, 404, "Invalid model: expected 'tiny', got 'gpt'"),
    "several answers": (TEXT, {"n": 2}, 400, "Invalid n: expected 1, got 2"),
    "a penalty": (CHAT, {"presence_penalty": 0.5}, 400, "Invalid presence_penalty: expected 0, got 0.5"),
    "a strange field": (CHAT, {"x": 1}, 400, "Invalid request: expected no field 'x', got 1"),
    "a scheduler that is none": (CHAT, {"scheduler": "best"}, 400, "Invalid scheduler: expected one of"),
    "a negative temperature": (CHAT, {"temperature": -1}, 400, "Invalid temperature: expected a number from 0"),
    "too many tokens": (TEXT, {"max_tokens": 10**9}, 400, "Invalid max_tokens: expected from 1 to 2048"),
    "more than the context": (TEXT, {"max_tokens": 2000}, 400, "Invalid max_tokens: expected at most"),
    "more, in a stream": (TEXT, {"max_tokens": 2000, "stream": True}, 400, "Invalid max_tokens: expected at most"),
    "more, by the newer name": (CHAT, {"max_completion_tokens": 2000}, 400, "Invalid max_completion_tokens: expected"),
    "a prompt as long as the context": (
        TEXT,
        {"prompt": "a " * 1000, "max_tokens": 1},
        400,
        "Invalid prompt: expected",
    ),
    "a chat as long as the context": (CHAT, hears("a " * 1000), 400, "Invalid messages: expected at most"),
    "a name": (
        CHAT,
        {"messages": [{"role": "user", "content": "a", "name": "Ann"}]},
        400,
        "Invalid message: expected no field 'name', got 'Ann'",
    ),
    "too large a hole": (TEXT, {"prompt": "<mask:2049>"}, 400, "Invalid prompt: expected at most 2048 masks, got 2049"),
    "too many mask tokens": (TEXT, {"prompt": "<mask>" * 2049}, 400, "Invalid prompt: expected at most 2048 masks"),
    "a hole in a chat": (CHAT, hears("a", "What is <mask:3>?"), 400, "Invalid messages: expected no masks in a chat"),
    "a mask in a chat": (CHAT, hears("What is <mask>?"), 400, "Invalid messages: expected no masks in a chat"),
    "a huge hole in a chat": (CHAT, hears("<mask:99999>"), 400, "Invalid messages: expected no masks in a chat"),
    "a hole and too much after it": (
        TEXT,
        {"prompt": "<mask:1000>", "max_tokens": 1049},
        400,
        "Invalid prompt: expected at most 2048 masks, got 2049",
    ),
    "an empty stop": (
        TEXT,
        {"stop": ""},
        400,
        "Invalid stop: expected at most 4 texts, from 1 to 200 characters each, got ''",
    ),
    "no messages": (CHAT, {"messages": []}, 400, "Invalid messages: expected from 1 to 200"),
    "a picture": (
        CHAT,
        hears([{"type": "image_url", "text": "a"}]),
        400,
        "Invalid part: expected one of type 'text', got 'image_url'",
    ),
    "a part with more": (
        CHAT,
        hears([{"type": "text", "text": "a", "zzz": 1}]),
        400,
        "Invalid part: expected no field 'zzz', got 1",
    ),
    "numbers of logprobs": (TEXT, {"logprobs": 0}, 400, "Invalid logprobs: expected False, got 0"),
    "a truth of answers": (CHAT, {"n": True}, 400, "Invalid n: expected 1, got True"),
    "a top_p without use": (CHAT, {"top_p": 7}, 400, "Invalid top_p: expected a number above 0 and at most 1, got 7.0"),
    "a number as scheduler": (TEXT, {"scheduler": 0}, 400, "Invalid scheduler: expected a text, got 0"),
    "a list of settings": (TEXT, {"settings": []}, 400, "Invalid settings: expected an object, got []"),
    "false as options": (CHAT, {"options": False}, 400, "Invalid options: expected an object, got False"),
    "a strange second length": (
        CHAT,
        {"max_completion_tokens": 3, "max_tokens": "x"},
        400,
        "Invalid max_tokens: expected an integer, got 'x'",
    ),
    "two lengths": (
        CHAT,
        {"max_completion_tokens": 3, "max_tokens": 5},
        400,
        "Invalid max_tokens: expected 3 as max_completion_tokens, got 5",
    ),
    "prompts of ids": (TEXT, {"prompt": [1, 2]}, 400, "Invalid prompt: expected a text, got [1, 2]"),
}


@pytest.mark.abuse("playground")
@pytest.mark.parametrize("name", BAD)
def test_what_is_not_supported_is_refused_by_name(name: str) -> None:
    path, more, status, words = BAD[name]
    refused = post(path, asked(path) | more)
    assert refused.status_code == status
    assert refused.json()["error"]["message"].startswith(words)
    assert refused.json()["error"]["type"] == "invalid_request_error"
