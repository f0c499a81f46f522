"""What a client of OpenAI's interface asks for, checked.

Fields that would change the answer and are not known here are refused, so that nobody takes an answer for what it is
not. Beyond OpenAI's fields there are `scheduler`, `settings` and `options`, as the page has them.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from lsp.decoding import Options
from lsp.play.asks import LONGEST_ANSWER, LONGEST_PROMPT, LONGEST_SETTING, check_masks, masks, side
from lsp.play.errors import NoSuchModel
from lsp.play.fields import Fields, shown, whole
from lsp.play.playground import Playground
from lsp.prompts import MARKER

MOST_STOPS, MOST_MESSAGES = 4, 200
WITHOUT_EFFECT = ("user", "metadata", "store", "service_tier", "prompt_cache_key", "safety_identifier")
AS_USUAL = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (False,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "suffix": ("",),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "modalities": (["text"],),
    "top_logprobs": (0,),
}
"""Fields that may be there with the value that they have by default."""


@dataclass
class Completion:
    """A request, checked."""

    is_chat: bool
    model: str
    prompt: Any
    arguments: dict[str, Any]
    stream: bool
    with_usage: bool
    length_field: str | None  # the name by which the client said how many masks follow
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def envelope(self, choice: dict[str, Any] | None, usage: dict[str, int] | None, *, chunk: bool) -> dict[str, Any]:
        """What is around a choice."""
        kind = "chat.completion" if self.is_chat else "text_completion"
        return {
            "id": f"{'chatcmpl' if self.is_chat else 'cmpl'}-{self.id}",
            "object": f"{kind}.chunk" if chunk and self.is_chat else kind,
            "created": self.created,
            "model": self.model,
            "choices": [] if choice is None else [{"index": 0, "logprobs": None, **choice}],
            **({} if usage is None and chunk and not self.with_usage else {"usage": usage}),
        }

    def piece(self, text: str, reason: str | None = None) -> dict[str, Any]:
        """A choice that is a piece of a stream."""
        if not self.is_chat:
            return {"text": text, "finish_reason": reason}
        return {"delta": {"content": text} if text or reason is None else {}, "finish_reason": reason}

    def whole(self, text: str, reason: str) -> dict[str, Any]:
        if not self.is_chat:
            return {"text": text, "finish_reason": reason}
        return {"message": {"role": "assistant", "content": text, "refusal": None}, "finish_reason": reason}


def completion(given: Any, playground: Playground, is_chat: bool) -> Completion:
    """Reads the request."""
    ask = Fields(given)
    model = ask.text("model", 300, playground.name)
    if model != playground.name:
        raise NoSuchModel(f"Invalid model: expected {playground.name!r}, got {model[:60]!r}")
    prompt: Any = conversation(ask, playground) if is_chat else prompt_of(ask)
    holes = 0 if is_chat else masks(prompt, playground)
    length_field, length = length_of(ask, is_chat)
    if length is None and not holes:
        length = playground.length()
    check_masks(holes + (length or 0))
    arguments = {
        "max_new_tokens": length,
        "stop": stops(ask),
        "seed": ask.number("seed", -(2**63), 2**63 - 1, 0),
        **decoding(ask),
    }
    stream, streaming = ask.take("stream", bool, False), Fields(ask.take("stream_options", dict, {}), "stream_options")
    with_usage = streaming.take("include_usage", bool, False)
    streaming.take("include_obfuscation", bool)
    streaming.close()
    as_usual(ask)
    ask.close()
    return Completion(is_chat, model, prompt, arguments, bool(stream), bool(with_usage), length_field)


def prompt_of(ask: Fields) -> str:
    """The text to continue; it may be alone in a list."""
    given = ask.left.get("prompt")
    if isinstance(given, list) and len(given) == 1:
        ask.left["prompt"] = given[0]
    return ask.text("prompt", LONGEST_PROMPT)


def check_room(ask: Completion, ids: list[int], context: int | None) -> None:
    """Refuses what is longer than the context, by a name that the client knows: that of its masks, or its prompt."""
    new = ask.arguments["max_new_tokens"] or 0
    if context is None or len(ids) + new <= context:
        return
    if ask.length_field is not None and len(ids) < context:
        expected = f"at most {context - len(ids)} (the prompt has {len(ids)} tokens, the context {context})"
        raise ValueError(f"Invalid {ask.length_field}: expected {expected}, got {new}")
    most = context - (new if ask.length_field is None else 1)
    expected = f"at most {most} tokens (the context has {context}, and {context - most} are for masks after it)"
    raise ValueError(f"Invalid {'messages' if ask.is_chat else 'prompt'}: expected {expected}, got {len(ids)}")


def length_of(ask: Fields, is_chat: bool) -> tuple[str | None, int | None]:
    """How many masks follow, and the name by which that was said. A chat has two names for it."""
    names = ["max_tokens", *(["max_completion_tokens"] if is_chat else [])]
    given = {name: ask.number(name, 1, LONGEST_ANSWER) for name in names}
    found = {name: number for name, number in given.items() if number is not None}
    if len(set(found.values())) > 1:
        first, second = found.values()
        raise ValueError(f"Invalid max_tokens: expected {second} as max_completion_tokens, got {first}")
    return next(iter(found.items()), (None, None))


def conversation(ask: Fields, playground: Playground) -> list[dict[str, str]]:
    """The messages of a chat: role and content alone. Content may be a text or a list of parts that are texts."""
    found = []
    for message in ask.take("messages", list, []) or []:
        each = Fields(message, "message")
        role, content = each.text("role", 40), each.left.pop("content", None)
        each.close()
        if isinstance(content, list):
            content = "".join(map(part_of, content))
        found.append({"role": role, "content": Fields({"content": content}).text("content", LONGEST_PROMPT)})
    characters = sum(len(message["content"]) for message in found)
    if not 1 <= len(found) <= MOST_MESSAGES or characters > LONGEST_PROMPT:
        expected = f"from 1 to {MOST_MESSAGES} of at most {LONGEST_PROMPT} characters together"
        raise ValueError(f"Invalid messages: expected {expected}, got {len(found)} of {characters}")
    if any(MARKER.search(text) or masks(text, playground) for message in found for text in message.values()):
        raise ValueError("Invalid messages: expected no masks in a chat, got some; /v1/completions fills holes")
    return found


def part_of(given: Any) -> str:
    """The text of a part of a message."""
    part = Fields(given, "part")
    kind = part.text("type", LONGEST_SETTING, "text")
    if kind != "text":
        raise ValueError(f"Invalid part: expected one of type 'text', got {shown(kind)}")
    text = part.text("text", LONGEST_PROMPT)
    part.close()
    return text


def stops(ask: Fields) -> list[str]:
    """Texts that end the answer: one, or a few."""
    given = ask.left.pop("stop", None)
    found = [] if given is None else given if isinstance(given, list) else [given]
    if len(found) > MOST_STOPS or not all(isinstance(one, str) and 0 < len(one) <= LONGEST_SETTING for one in found):
        expected = f"at most {MOST_STOPS} texts, from 1 to {LONGEST_SETTING} characters each"
        raise ValueError(f"Invalid stop: expected {expected}, got {shown(given)}")
    return [whole("stop", one) for one in found]


def decoding(ask: Fields) -> dict[str, Any]:
    """The scheduler and the options of the loop. Without a temperature the answer is the most likely one."""
    names = {"scheduler": "lsp", "settings": {}, "options": {}}
    sampling = {"temperature": ask.take("temperature", float, 0.0)}
    top_p = ask.take("top_p", float, 1.0)
    Options(temperature=1.0, top_p=top_p)  # checks it also where it makes no difference
    if sampling["temperature"] and top_p != 1:
        sampling["top_p"] = top_p
    given = {name: ask.left.pop(name, default) for name, default in names.items()}
    scheduler, options = side(given, sampling)
    return {"scheduler": scheduler, **options}


def as_usual(ask: Fields) -> None:
    """Takes the fields that change nothing as they are; refuses those that would."""
    for name in WITHOUT_EFFECT:
        ask.left.pop(name, None)
    for name, allowed in AS_USUAL.items():
        value = ask.left.pop(name, None)
        if value is not None and not any(same(value, one) for one in allowed):
            raise ValueError(f"Invalid {name}: expected {shown(allowed[0])}, got {shown(value)}")


def same(value: Any, allowed: Any) -> bool:
    """Whether two values of JSON are the same; in Python false is also 0, and true 1."""
    return bool(value == allowed) and isinstance(value, bool) == isinstance(allowed, bool)
