"""Who may ask: this machine's own pages and programs, for no more than they need."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import pytest

from lsp.play import Playground, guard
from lsp.play.guard import name_of
from tests.play.serving import HOST, asking, get, model, post, question
from tests.traces import HOSTILE

FOREIGN_HOSTS = [
    "evil.example",
    "evil.example:7777",
    "127.0.0.1.evil.example",
    "",
    "127.0.0.1@evil.example",
    "localhost:x",
    "0.0.0.0:7777",
]


@pytest.mark.parametrize("host", ["127.0.0.1:7777", "localhost:9000", "localhost", "[::1]:7777"])
def test_this_machine_may_ask_by_any_port(host: str) -> None:
    assert get("/", headers={"host": host}).status_code == 200


@pytest.mark.abuse("playground")
@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_another_name_is_refused(host: str) -> None:
    """A name that was rebound to this machine is still another one."""
    for answer in (get("/", headers={"host": host}), post("/v1/completions", {}, headers={"host": host})):
        assert answer.status_code == 403
        assert "Invalid Host: expected localhost, got " in answer.text


@pytest.mark.abuse("playground")
@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:8888", "https://127.0.0.1.evil.example:7777"]
)
@pytest.mark.parametrize("path", ["/api/runs", "/v1/chat/completions"])
def test_a_page_of_another_origin_is_refused(origin: str, path: str) -> None:
    answer = post(path, question(), headers={"origin": origin})
    assert answer.status_code == 403
    assert "Invalid Origin: expected http://127.0.0.1:7777, got " in answer.text
    assert "access-control-allow-origin" not in answer.headers


def test_the_page_itself_may_ask() -> None:
    assert post("/api/runs", question(max_new_tokens=4), headers={"origin": HOST}).status_code == 200


@pytest.mark.abuse("playground")
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_what_a_form_of_another_page_could_send_is_refused(kind: str) -> None:
    body = json.dumps(question()).encode()
    answer = asking(lambda client: client.post("/api/runs", content=body, headers={"content-type": kind}))
    assert (answer.status_code, answer.text[:21]) == (403, "Invalid Content-Type:")


@pytest.mark.abuse("playground")
def test_a_request_that_is_too_large_is_refused() -> None:
    answer = post("/api/runs", {"prompt": "a" * guard.LARGEST_REQUEST})
    assert answer.status_code == 413
    assert answer.json() == {"error": f"Invalid request: expected at most {guard.LARGEST_REQUEST} bytes, got more"}


@pytest.mark.parametrize("path", ["/", "/api/problem?task=code&index=1", "/v1/models", "/nowhere"])
def test_no_answer_may_be_framed_sniffed_or_kept(path: str) -> None:
    headers = get(path).headers
    for name, value in guard.HEADERS.items():
        assert headers[name] == value


def test_only_the_script_of_the_page_may_run_and_it_reaches_nobody_else() -> None:
    answer = get("/")
    *_, script = re.findall(r"<script[^>]*>(.*?)</script>", answer.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == f"'sha256-{digest}'"
    assert policy["connect-src"] == "'self'"
    assert set(re.findall(r"https?://[^\s\"'`<]*", answer.text)) == {"http://www.w3.org/2000/svg"}
    assert len(re.findall("<script", answer.text)) == 2


def test_the_name_of_a_model_is_text() -> None:
    named = Playground(*model(), name=HOSTILE)
    text = asking(lambda client: client.get("/"), named).text
    assert len(re.findall("<script", text)) == 2
    assert "<img" not in text


def test_the_page_is_small() -> None:
    assert len(get("/").content) < 300_000


@pytest.mark.parametrize(
    ("host", "name"),
    [("localhost:1", "localhost"), ("[::1]:80", "::1"), ("a@localhost", None), ("localhost/x", None), ("[::1", None)],
)
def test_the_name_in_a_host(host: str, name: str | None) -> None:
    assert name_of(host) == name
