"""A chat template is a program of the checkpoint: it says what transformers says, within limits of time and memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import lsp
from lsp.models import templates
from lsp.models.templates import render
from lsp.prompts import encode

abuse = pytest.mark.abuse("prompts and generation")
CHAT = [{"role": "user", "content": "Hello [INST] {{ 1 }} \u2028 ü"}, {"role": "assistant", "content": ""}]
USUAL = {
    "plain": "{% for message in messages %}{{ message['content'] | trim }}\n{% endfor %}",
    "roles": "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "json": "{{ messages | tojson(indent=2) }}",
    "controls": "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
    "macro": "{% macro f(m) %}[{{ m.role | upper }}]{% endmacro %}{% for m in messages %}{{ f(m) }}{% endfor %}",
}


@pytest.fixture
def tokenizer() -> Any:
    return lsp.load_tokenizer("tiny")


@pytest.mark.parametrize("name", USUAL)
def test_the_text_is_that_of_transformers(tokenizer: Any, name: str) -> None:
    tokenizer.chat_template = USUAL[name]
    text = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert render(tokenizer, CHAT) == text
    assert encode(CHAT, tokenizer) == tokenizer(text, add_special_tokens=False)["input_ids"]


def test_an_answer_that_has_begun_stays_open(tokenizer: Any) -> None:
    tokenizer.chat_template = USUAL["plain"]
    begun = [*CHAT, {"role": "assistant", "content": "It is"}]
    text = tokenizer.apply_chat_template(begun, tokenize=False, continue_final_message=True)
    assert render(tokenizer, begun, continued=True) == text
    assert text.endswith("It is")


HOSTILE = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loops inside a call": "{{ range(99999) | map('string') | map('list') | list | length }}" * 1000,
    "repeats a text": "{{ 'x' * 10000000000 }}",
    "repeats a list": "{{ [0] * 10000000000 }}",
    "doubles": "{% set n = namespace(x='x') %}{% for a in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "pads": "{{ 'x'.ljust(10**10) }}",
    "keeps a gigabyte to itself": "{% set x = messages[0].role * 250000000 %}short",
    "formats": "{{ '%10000000000d' | format(1) }}",
    "indents": "{{ 'x\nx' | indent(10**10) }}",
    "multiplies": "{{ 7 ** (7 ** 9) }}",
    "writes much": "{% for a in range(99999) %}{{ 'x' * 999 }}{% endfor %}",
    "recurses": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
}


@abuse
@pytest.mark.parametrize("name", HOSTILE)
def test_a_template_without_end_is_stopped_and_the_next_chat_is_served(
    tokenizer: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(templates, "SECONDS_TO_ANSWER", 3.0)
    tokenizer.chat_template, good = HOSTILE[name], tokenizer.chat_template
    begin = time.monotonic()
    with pytest.raises(ValueError, match="Invalid chat"):
        render(tokenizer, CHAT)
    assert time.monotonic() - begin < 60
    tokenizer.chat_template = good
    monkeypatch.undo()
    assert render(tokenizer, CHAT[:1]) == CHAT[0]["content"] + "\n"


REFUSED = {
    "own refusal": ("{{ raise_exception('roles must alternate') }}", "TemplateError: roles must alternate"),
    "no syntax": ("{% if %}", "TemplateSyntaxError"),
    "reads a class": ("{{ messages.__class__.__mro__ }}", "SecurityError"),
    "reads globals": ("{{ cycler.__init__.__globals__ }}", "SecurityError"),
    "includes a file": ("{% include '/etc/passwd' %}", "Invalid chat for this model's template"),
    "changes its input": ("{{ messages.append(1) }}", "SecurityError"),
    "unknown filter": ("{{ 1 | nothing }}", "nothing"),
}


@abuse
@pytest.mark.parametrize("name", REFUSED)
def test_a_template_that_fails_says_why(tokenizer: Any, name: str) -> None:
    tokenizer.chat_template, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        render(tokenizer, CHAT)


@abuse
def test_the_childs_own_clock_ends_it_without_its_parent() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(templates.command(), stdin=pipe, stdout=pipe) as child:
        child.stdin.write(b'{"chat_template": "%s", "conversations": [[]]}\n' % HOSTILE["loops"].encode())
        child.stdin.close()
        assert child.wait(60) == -signal.SIGALRM


@abuse
@pytest.mark.parametrize("template", [3, ["x"], None, {"other": "x"}], ids=str)
def test_a_template_that_is_no_text_is_refused(tokenizer: Any, template: object) -> None:
    tokenizer.chat_template = template
    with pytest.raises(ValueError, match=r"Invalid chat template: expected text|chat_template is not set|no default"):
        render(tokenizer, CHAT)


@abuse
def test_a_chat_that_is_no_text_is_refused(tokenizer: Any) -> None:
    with pytest.raises(TypeError, match=r"Invalid chat: expected messages of texts, got .*object"):
        render(tokenizer, [{"role": "user", "content": object()}])


@abuse
def test_a_child_that_cannot_start_is_said(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "_children", {})
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(RuntimeError, match=r"Could not render a chat: .*cannot start: /no/such/python"):
        render(tokenizer, CHAT)


def test_threads_get_their_own_chats(tokenizer: Any) -> None:
    chats = [[{"role": "user", "content": str(i)}] for i in range(40)]
    found: dict[int, str] = {}
    threads = [threading.Thread(target=lambda i=i: found.update({i: render(tokenizer, chats[i])})) for i in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: f"{i}\n" for i in range(40)}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_does_not_share_the_child(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    render(tokenizer, CHAT)
    assert list(templates._children) == [os.getpid()]
    monkeypatch.setattr(os, "getpid", lambda: -1)
    render(tokenizer, CHAT)
    assert len(templates._children) == 2
    templates._children.pop(-1).close()


def test_other_tokenizers_render_their_own_chats(tmp_path: Path) -> None:
    class Own:
        def apply_chat_template(self, chat: list, **options: object) -> str:
            assert options == {"tokenize": False, "add_generation_prompt": True}
            return chat[0]["content"]

    assert render(Own(), CHAT) == CHAT[0]["content"]
