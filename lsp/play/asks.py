"""What the page asks for, checked: a prompt, and the schedulers that decode it beside each other."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from lsp.cli import settings
from lsp.decoding import Options, Scheduler
from lsp.play.fields import Fields, shown
from lsp.play.playground import PROBLEMS, Playground
from lsp.prompts import MARKER, encode_text
from lsp.tiny.tasks import Problem

LONGEST_PROMPT, LONGEST_ANSWER, MOST_SIDES, LONGEST_SETTING = 20_000, 2048, 4, 200
SHARED = ("temperature", "top_p", "top_k", "cfg_scale")  # the same for all sides, so that they can be compared
HIDDEN = (*SHARED, "graph", "stop_early")
LOOP = [f.name for f in fields(Options) if f.name not in HIDDEN]
"""The options of the loop that the page offers for each scheduler."""


@dataclass(frozen=True)
class Comparison:
    """One prompt and its schedulers. `problem` is there if the prompt is that of a task, which can be judged."""

    prompt: Any
    schedulers: list[Scheduler]
    options: list[dict[str, Any]]
    length: int | None
    seed: int
    problem: Problem | None


def comparison(given: Any, playground: Playground) -> Comparison:
    """Reads the request of a run."""
    ask = Fields(given)
    prompt = ask.text("prompt", LONGEST_PROMPT)
    holes = masks(prompt, playground)
    length = ask.number("max_new_tokens", 0, LONGEST_ANSWER)
    chat = ask.take("chat", bool, playground.chat)
    seed = ask.number("seed", 0, 2**53, 0)
    shared = {"temperature": ask.take("temperature", float, 0.0)}
    problem = problem_of(ask, prompt, playground)
    given_sides = ask.take("sides", list, []) or []
    if not 1 <= len(given_sides) <= MOST_SIDES:
        raise ValueError(f"Invalid sides: expected from 1 to {MOST_SIDES} schedulers, got {len(given_sides)}")
    sides = [side(each, shared) for each in given_sides]
    ask.close()
    check_masks(holes + (length or 0))
    if length is None and not holes:
        length = playground.length(problem)
    schedulers, options = zip(*sides, strict=True)
    inputs = playground.inputs(prompt, bool(chat) and not holes)
    return Comparison(inputs, list(schedulers), list(options), length, seed or 0, problem)


def tokens(given: Any, playground: Playground) -> int:
    """Reads the question how many tokens a text has."""
    ask = Fields(given)
    text = ask.text("text", LONGEST_PROMPT)
    ask.close()
    return len(playground.tokenizer(text, add_special_tokens=False)["input_ids"])


def masks(text: str, playground: Playground) -> int:
    """How many masks a text has: those of its holes, and the model's own mask tokens in it."""
    check_masks(sum(int(size) if len(size) < 8 else LONGEST_ANSWER + 1 for size in MARKER.findall(text)))
    mask = playground.model.config.mask_id
    return encode_text(text, playground.tokenizer, mask).count(mask)


def check_masks(count: int) -> None:
    """Refuses a question of which too much is to be decoded: the holes of its prompt and what follows it."""
    if count > LONGEST_ANSWER:
        raise ValueError(f"Invalid prompt: expected at most {LONGEST_ANSWER} masks, got {count}")


def problem_of(ask: Fields, prompt: str, playground: Playground) -> Problem | None:
    """The problem of a task, if the prompt is still its own."""
    task, index = ask.take("task", str), ask.number("index", 0, PROBLEMS - 1, 0)
    if task is None:
        return None
    problem = playground.problem(task, index or 0)
    return problem if problem.prompt.strip() == prompt.strip() else None


def side(given: Any, shared: dict[str, Any]) -> tuple[Scheduler, dict[str, Any]]:
    """A scheduler with its settings, and the options of the loop that replace its own."""
    ask = Fields(given, "side")
    name = ask.text("scheduler", LONGEST_SETTING)
    chosen = settings.scheduler(name, [f"{key}={text}" for key, text in texts(ask, "settings")])
    hints = get_type_hints(Options)
    options = dict(shared)
    for key, text in texts(ask, "options"):
        if key not in LOOP:
            raise ValueError(f"Invalid option: expected one of {', '.join(LOOP)}, got {key[:60]!r}")
        options[key] = settings.value(key, hints[key], text)
    ask.close()
    chosen.check(chosen.options.replaced_by(options))
    return chosen, options


def texts(ask: Fields, name: str) -> list[tuple[str, str]]:
    """An object of texts."""
    given = ask.take(name, dict, {}) or {}
    for key, text in given.items():
        if not isinstance(text, str) or len(text) > LONGEST_SETTING or len(key) > LONGEST_SETTING:
            raise ValueError(
                f"Invalid {name}: expected texts of at most {LONGEST_SETTING} characters, got {shown(text)}"
            )
    return list(given.items())


def offered() -> list[dict[str, Any]]:
    """Every scheduler with what can be set of it, for the page."""
    out = []
    for name in settings.NAMES:
        one = settings.scheduler(name)
        lines = (type(one).__doc__ or "").strip().splitlines()
        options = {key: settings.shown(getattr(one.options, key)) for key in LOOP}
        heading = f"{one.name} (paper)" if name == "paper" else one.name
        out.append(
            {"key": name, "name": heading, "about": lines[0] if lines else ""}
            | {"settings": settings.defaults(name), "options": options}
        )
    return out


__all__ = ["Comparison", "check_masks", "comparison", "masks", "offered", "tokens"]
