"""Chat templates, rendered by a child process with limits.

A template is a small program that comes with a checkpoint. Jinja's sandbox keeps it from files and modules, but not
from looping for ever or from building gigabytes. A process of its own can be stopped at any time. It starts with the
first chat, which takes about a second, for it imports transformers, and then serves all chats of this process.

The file is also the script of the child, so it imports nothing of `lsp` at the top.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lsp.child import Child

SECONDS, MEGABYTES, CHARACTERS = 10, 512, 2**24
"""What one chat may take: time, memory beyond that of an idle child, length of the text."""

SECONDS_TO_START, SECONDS_TO_ANSWER = 120.0, SECONDS + 5.0  # the child's own clock comes first
_children: dict[int, Child] = {}  # by the process that it serves: a fork must not share the pipes of its parent
_one_at_a_time = threading.Lock()


def render(tokenizer: Any, chat: Sequence[dict[str, str]], *, continued: bool = False) -> str:
    """A chat as the text of a prompt, with the opening of the answer.

    If it is to be `continued`, the last message is the beginning of the answer and stays open. A tokenizer of
    transformers is asked for its template. Any other has its own ``apply_chat_template``.
    """
    ending = {"continue_final_message": True} if continued else {"add_generation_prompt": True}
    if not _is_of_transformers(tokenizer):
        text: str = tokenizer.apply_chat_template(chat, tokenize=False, **ending)
        return text
    template = tokenizer.get_chat_template()
    if not isinstance(template, str):
        raise ValueError(f"Invalid chat template: expected text, got {template!r}")
    with _one_at_a_time:
        answer = _ask({"chat_template": template, "conversations": [chat], **ending, **tokenizer.special_tokens_map})
    if "error" in answer:
        raise ValueError(f"Invalid chat for this model's template: {answer['error']}")
    return answer["text"]


def _is_of_transformers(tokenizer: Any) -> bool:
    method = getattr(type(tokenizer), "apply_chat_template", None)
    return getattr(method, "__module__", None) == "transformers.tokenization_utils_base"


def command() -> list[str]:
    """What starts a child. It is isolated from the environment, so it is told where modules are."""
    return [sys.executable, "-I", __file__, json.dumps([entry for entry in sys.path if entry])]


def _ask(question: dict[str, Any]) -> dict[str, str]:
    from lsp.child import CannotStartError, Child, GoneError

    here = os.getpid()
    try:
        if here not in _children:
            _children[here] = Child(command(), SECONDS_TO_START)
            atexit.register(_children[here].close)
        answer: dict[str, str] = _children[here].ask(question, SECONDS_TO_ANSWER)
        return answer
    except TypeError as error:
        raise TypeError(f"Invalid chat: expected messages of texts, got {error}") from None
    except CannotStartError as error:
        raise RuntimeError(f"Could not render a chat: the process that does it cannot start: {error}") from error
    except GoneError:
        _children.pop(here)
        limits = f"at most {SECONDS} s and {MEGABYTES} MB for a chat"
        raise ValueError(f"Invalid chat template: expected {limits}, got one that takes more") from None


def _serve() -> None:
    """The child: one chat per line in, one text per line out."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    sys.path[:] = json.loads(sys.argv[1])
    from transformers.utils.chat_template_utils import render_jinja_template

    _limit()
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        if hasattr(signal, "alarm"):
            signal.alarm(SECONDS)  # nobody catches it: the child ends, also if its parent has ended before
        try:
            (text,), _ = render_jinja_template(**json.loads(line))
            long = f"expected at most {CHARACTERS} characters, got {len(text)}"
            answer = {"error": long} if len(text) > CHARACTERS else {"text": text}
        except MemoryError:
            answer = {"error": f"expected at most {MEGABYTES} MB, got more"}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:1000]}
        if hasattr(signal, "alarm"):
            signal.alarm(0)
        print(json.dumps(answer), file=answers, flush=True)


def _limit() -> None:
    """Limits the memory to what the process has now and a little more, where a system can do that."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        most = pages * resource.getpagesize() + (MEGABYTES << 20)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


if __name__ == "__main__":
    _serve()
