"""OpenAI's own client asks the playground's server. Run by ``make test-openai``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("openai")
pytest.importorskip("starlette")
import openai

from lsp.play.completions import Answer
from tests.play.serving import PROMPT, answer, reason, served, slow_down

pytestmark = pytest.mark.openai
CHAT = [{"role": "user", "content": PROMPT}]


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with served() as (address, _):
        yield openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=120)


def test_models(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"


def test_a_chat(client: Any) -> None:
    out = client.chat.completions.create(model="tiny", messages=CHAT)
    assert (out.choices[0].message.content, out.choices[0].finish_reason) == (answer().text, reason(answer()))
    assert out.usage.total_tokens == out.usage.prompt_tokens + out.usage.completion_tokens
    assert out.usage.passes > 1


def test_a_chat_as_a_stream(client: Any) -> None:
    how = {"stream": True, "stream_options": {"include_usage": True}}
    pieces = list(client.chat.completions.create(model="tiny", messages=CHAT, **how))
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices) == answer().text
    assert pieces[-1].usage.passes > 1


def test_an_answer_can_be_sent_back_in_the_next_question(client: Any) -> None:
    out = client.chat.completions.create(model="tiny", messages=CHAT)
    messages = [*CHAT, out.choices[0].message, *CHAT]
    assert client.chat.completions.create(model="tiny", messages=messages).usage.prompt_tokens > out.usage.total_tokens


def test_a_text(client: Any) -> None:
    expected = answer(scheduler="threshold", max_new_tokens=32).text or ""
    stop = expected[len(expected) // 2 :][:3]
    how = {"max_tokens": 32, "temperature": 0, "seed": 1, "stop": [stop], "extra_body": {"scheduler": "threshold"}}
    out = client.completions.create(model="tiny", prompt=f"{PROMPT}\n", **how)
    assert out.choices[0].text == expected.partition(stop)[0]
    assert [
        piece.choices[0].text for piece in client.completions.create(model="tiny", prompt="", stream=True, max_tokens=1)
    ]


@pytest.mark.parametrize("form", ["chat", "text"])
def test_a_temperature_draws_by_the_seed(client: Any, form: str) -> None:
    def drawn(**how: Any) -> str:
        how = {"model": "tiny", "temperature": 1.5, **how}
        if form == "chat":
            return str(client.chat.completions.create(messages=CHAT, **how).choices[0].message.content)
        return str(client.completions.create(prompt=f"{PROMPT}\n", **how).choices[0].text)

    assert drawn(seed=1) == drawn(seed=1) == answer(temperature=1.5, seed=1).text != drawn(seed=2)
    assert drawn(seed=1, top_p=0.5) == answer(temperature=1.5, seed=1, top_p=0.5).text != drawn(seed=1)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_ends_a_chat(client: Any, stream: bool) -> None:
    whole = answer().text or ""
    stop = whole[len(whole) // 2 :][:3]
    out = client.chat.completions.create(model="tiny", messages=CHAT, stop=[stop, "zzz"], stream=stream)
    pieces = [piece.choices[0].delta.content for piece in out] if stream else [out.choices[0].message.content]
    assert "".join(filter(None, pieces)) == whole.partition(stop)[0] != whole


def test_a_client_that_waits_for_several_answers_at_once() -> None:
    async def ask(address: str) -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=120) as client:
            whole = [client.chat.completions.create(model="tiny", messages=CHAT) for _ in range(3)]
            texts = [out.choices[0].message.content or "" for out in await asyncio.gather(*whole)]
            stream = await client.chat.completions.create(model="tiny", messages=CHAT, stream=True)
            return [*texts, "".join([piece.choices[0].delta.content or "" async for piece in stream])]

    with served() as (address, _):
        assert asyncio.run(ask(address)) == [answer().text] * 4


def test_errors_are_the_clients_own(client: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="Invalid model: expected 'tiny'"):
        client.chat.completions.create(model="gpt", messages=CHAT)
    with pytest.raises(openai.BadRequestError, match="Invalid n: expected 1, got 2"):
        client.chat.completions.create(model="tiny", messages=CHAT, n=2)
    with pytest.raises(openai.NotFoundError, match="Invalid path: got '/v1/embeddings'"):
        client.embeddings.create(model="tiny", input="a")


def test_a_stream_that_is_left_is_stopped(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told = slow_down(monkeypatch)
    stream = client.chat.completions.create(model="tiny", messages=CHAT, stream=True, extra_body={"scheduler": "full"})
    next(iter(stream))
    stream.close()
    out = client.chat.completions.create(model="tiny", messages=CHAT)
    assert out.choices[0].message.content == answer().text
    assert sum(isinstance(event, Answer) for event in told) == 1
