"""Runs: what the page is told of every pass is what a trace of the same run has."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

import lsp
from lsp.play.page import DEFAULTS
from lsp.tiny.tasks import generate, verify
from lsp.tracing import storage
from tests.play import serving
from tests.play.serving import PROMPT, asking, events, post, question


def of_side(told: list[Any], side: int) -> list[dict[str, Any]]:
    return [event for event in told if event.get("side") == side]


def trace_of(told: list[Any], side: int = 0) -> lsp.Trace:
    """The trace that the events of a side tell."""
    *_, end = mine = of_side(told, side)
    head = {key: value for key, value in end["head"].items() if key != "given"}
    lines = [event["line"] for event in mine if event["event"] == "pass"]
    return storage.from_lines({"format": storage.FORMAT, **head}, lines, "run")


@pytest.mark.parametrize("name", ["lsp", "paper", "threshold", "full", "adablock", "klass"])
def test_the_events_are_the_trace(name: str) -> None:
    told = events(post("/api/runs", question(name, max_new_tokens=32)))
    model, tokenizer = serving.model()
    chat = [{"role": "user", "content": PROMPT}]
    (expected,) = lsp.trace(model, [chat], scheduler=name, tokenizer=tokenizer, max_new_tokens=32)
    assert trace_of(told) == expected
    assert told[0] == {"event": "place", "ahead": 0}
    assert told[-1] == {"event": "done"}


def test_costs_count_up_to_those_of_the_whole() -> None:
    told = events(post("/api/runs", question("lsp")))
    passes = [event for event in told if event.get("event") == "pass"]
    assert [event["passes"] for event in passes] == list(range(1, len(passes) + 1))
    for name in ("positions", "seconds"):
        values = [event[name] for event in passes]
        assert values == sorted(values)
        assert values[0] > 0
    assert passes[-1]["positions"] == trace_of(told).positions


def test_every_token_that_a_pass_shows_has_its_text_by_then() -> None:
    told = of_side(events(post("/api/runs", question("threshold"))), 0)
    known = set(told[0]["head"]["pieces"])
    for event in told[1:-1]:
        assert not known & set(event["pieces"])  # and each is told once
        known |= set(event["pieces"])
        _, tokens = event["line"].get("tokens", ([], []))
        assert {str(token) for token in tokens} <= known


def test_two_schedulers_take_turns() -> None:
    told = events(post("/api/runs", question("lsp", "full")))
    sides = [event["side"] for event in told if event.get("event") == "pass"]
    shorter = min(sides.count(0), sides.count(1))
    assert sides[: 2 * shorter] == [0, 1] * shorter
    for side, name in enumerate(("lsp", "full")):
        assert trace_of(told, side).text == serving.answer(scheduler=name).text


def test_parameters_and_options_apply() -> None:
    side = {"scheduler": "threshold", "settings": {"p": "0.5"}, "options": {"block_length": "8", "cache": "none"}}
    trace = trace_of(events(post("/api/runs", {"prompt": PROMPT, "sides": [side]})))
    assert trace.scheduler == "Threshold(p=0.5)"
    assert (trace.options["block_length"], trace.options["cache"]) == (8, "none")


def test_a_temperature_samples_by_the_seed() -> None:
    asked = [question("lsp", temperature=1.5, seed=seed) for seed in (1, 1, 2)]
    texts = [trace_of(events(post("/api/runs", one))).text for one in asked]
    assert texts[0] == texts[1] != texts[2]


def test_holes_are_filled_and_what_is_given_is_told_at_once() -> None:
    prompt = f"{PROMPT}\nFirst<mask:5>, then 12 + 3 = 15."
    told = events(post("/api/runs", {"prompt": prompt, "sides": [{"scheduler": "lsp"}]}))
    trace = trace_of(told)
    assert trace.text == serving.answer(prompt, max_new_tokens=None).text
    given = [at for at, number in enumerate(trace.committed_in) if number < 0]
    assert told[1]["head"]["given"] == [[at, trace.tokens[at]] for at in given]


@pytest.mark.parametrize(("task", "index"), [("arithmetic", 0), ("countdown", 3), ("sudoku", 1)])
def test_the_answer_of_a_task_is_judged(task: str, index: int) -> None:
    *_, problem = generate(task, index + 1)
    asked = {"prompt": problem.prompt, "task": task, "index": index, "sides": [{"scheduler": "lsp"}]}
    told = events(post("/api/runs", asked))
    (right,) = verify([problem], [trace_of(told).text or ""])
    assert of_side(told, 0)[-1]["head"]["verdict"] == ("right" if right else "wrong")
    wrong = {**asked, "sides": [{"scheduler": "fixed", "settings": {"k": "64"}}], "max_new_tokens": 4}
    assert of_side(events(post("/api/runs", wrong)), 0)[-1]["head"]["verdict"] == "wrong"
    other = {**asked, "prompt": problem.prompt.replace("a", "e") + "!"}
    assert of_side(events(post("/api/runs", other)), 0)[-1]["head"]["verdict"] is None


def test_the_first_example_is_one_where_the_schedulers_differ_visibly() -> None:
    *_, problem = generate(DEFAULTS["task"], DEFAULTS["index"] + 1)
    sides = [{"scheduler": name} for name in DEFAULTS["sides"]]
    asked = {"prompt": problem.prompt, "task": DEFAULTS["task"], "index": DEFAULTS["index"], "sides": sides}
    told = events(post("/api/runs", asked))
    few, many = trace_of(told, 0), trace_of(told, 1)
    assert many.passes > 3 * few.passes
    assert many.positions > 3 * few.positions
    assert [of_side(told, side)[-1]["head"]["verdict"] for side in (0, 1)] == ["right", "right"]


BAD = {
    "no JSON object": ([], "Invalid request: expected an object, got []"),
    "no prompt": ({"sides": []}, "Invalid prompt: expected a text, got none"),
    "a number as prompt": ({"prompt": 3}, "Invalid prompt: expected a text, got 3"),
    "a prompt that is too long": (
        {"prompt": "a" * 20001},
        "Invalid prompt: expected at most 20000 characters, got 20001",
    ),
    "half a character": ({"prompt": "\ud800"}, "Invalid prompt: expected text in UTF-8, got '\\ud800'"),
    "no sides": (question() | {"sides": []}, "Invalid sides: expected from 1 to 4 schedulers, got 0"),
    "five sides": (question(*["lsp"] * 5), "Invalid sides: expected from 1 to 4 schedulers, got 5"),
    "a strange field": (question(x=1), "Invalid request: expected no field 'x', got 1"),
    "a strange scheduler": (question("best"), "Invalid scheduler: expected one of"),
    "a strange setting": (
        {"prompt": "a", "sides": [{"scheduler": "threshold", "settings": {"q": "1"}}]},
        "Invalid setting 'q=1' of threshold: expected name=value with p=0.9",
    ),
    "a setting that makes no sense": (
        {"prompt": "a", "sides": [{"scheduler": "threshold", "settings": {"p": "2"}}]},
        "Invalid p: expected",
    ),
    "a strange option": (
        {"prompt": "a", "sides": [{"scheduler": "lsp", "options": {"graph": "true"}}]},
        "Invalid option: expected one of block_length",
    ),
    "too many masks": (question(max_new_tokens=2049), "Invalid max_new_tokens: expected from 0 to 2048, got 2049"),
    "too large a hole": (
        question() | {"prompt": "<mask:2049>"},
        "Invalid prompt: expected at most 2048 masks, got 2049",
    ),
    "too many mask tokens": (question() | {"prompt": "<mask>" * 2049}, "Invalid prompt: expected at most 2048 masks"),
    "an endless hole": (question() | {"prompt": f"<mask:{'9' * 5000}>"}, "Invalid prompt: expected at most 2048 masks"),
    "true as a seed": (question(seed=True), "Invalid seed: expected an integer, got True"),
    "no number as temperature": (question(temperature="hot"), "Invalid temperature: expected a number, got 'hot'"),
    "a strange task": (question(task="chess"), "Invalid task: expected one of arithmetic"),
}


@pytest.mark.abuse("playground")
@pytest.mark.parametrize("name", BAD)
def test_a_bad_question_is_refused_in_one_sentence(name: str) -> None:
    given, words = BAD[name]
    answer = post("/api/runs", given)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(words)


def test_what_the_model_cannot_do_is_an_event() -> None:
    *_, last = events(post("/api/runs", question("lsp", max_new_tokens=2000)))
    assert last["event"] == "error"
    assert last["error"].startswith("Invalid max_new_tokens: expected at most ")


def test_those_who_wait_are_told_their_place() -> None:
    async def many(client: httpx.AsyncClient) -> list[httpx.Response]:
        asked = [client.post("/api/runs", json=question("full")) for _ in range(3)]
        return list(await asyncio.gather(*asked))

    places = [[event["ahead"] for event in events(answer) if event.get("event") == "place"] for answer in asking(many)]
    assert sorted(place[0] for place in places) in ([0, 0, 1], [0, 1, 2])
    for place in places:
        assert place[-1] == 0 or place == sorted(place, reverse=True)
        assert place == sorted(place, reverse=True)
