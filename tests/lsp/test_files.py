"""What is written is written whole: a full disk keeps the older file. An output that cannot be is noticed first."""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")
pytest.importorskip("transformers")

from lsp.cli import options
from lsp.evaluation import plot
from lsp.files import check_writable, write_whole
from lsp.tracing import html
from tests import traces
from tests.lsp.commands import Ran

abuse = pytest.mark.abuse("result files and traces")
ROWS = [{"task": "t", "scheduler": "s", "accuracy": 0.5, "low": 0.1, "high": 0.9, "passes": 3.0, "positions": 9.0}]
NEW = ("--max-new-tokens", "8")


@contextmanager
def full_disk(size: int = 500) -> Iterator[None]:
    """No file can grow beyond this many bytes, as on a disk without more room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def save_trace(path: Path) -> None:
    traces.of("lsp").save(path)


def save_page(path: Path) -> None:
    html.write(path, [traces.of("lsp")])


def save_plot(path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot.plot(ROWS, path)


@abuse
@pytest.mark.parametrize(("name", "write"), [("a.jsonl", save_trace), ("a.html", save_page), ("a.svg", save_plot)])
@pytest.mark.parametrize("older", [b"older", None])
def test_a_full_disk_keeps_the_older_file(
    name: str, write: Callable[[Path], None], older: bytes | None, tmp_path: Path
) -> None:
    path = tmp_path / name
    if older is not None:
        path.write_bytes(older)
    with full_disk(), pytest.raises(OSError, match="File too large"):
        write(path)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == ([] if older is None else [older])
    write(path)
    assert path.stat().st_size > 500


@abuse
def test_a_full_disk_is_one_line_and_keeps_the_tables(run: Callable[..., Ran], tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    out.write_text("older")
    small = ["--task", "countdown", "--problems", 1, "--flips", 0, "--tail", "dropped", *NEW]
    with full_disk():
        ran = run("compare", *small, "--out", out)
    assert ran.code == 1
    assert ran.err == f"lsp: error: {out}: File too large\n"
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"t.json": "older"}
    assert "Full" in ran.out  # what was measured is still shown


def test_links_and_permissions_stay(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("older")
    target.chmod(0o640)
    link.symlink_to("target")
    write_whole(link, "newer")
    assert link.is_symlink()
    assert target.read_text() == "newer"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    write_whole(tmp_path / "fresh", b"x")
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "fresh").stat().st_mode) == 0o666 & ~umask


def test_devices_are_written_to(tmp_path: Path) -> None:
    write_whole("/dev/null", "x")
    check_writable("/dev/null")
    assert Path("/dev/null").is_char_device()


UNWRITABLE = ["/no/such/folder/out{}", "/proc/out{}", "folder{}"]
COMMANDS = {
    "trace page": (["trace"], ".html", []),
    "trace lines": (["trace"], ".jsonl", []),
    "compare table": (["compare", "--out"], ".json", []),
    "compare plot": (["compare", "--plot"], ".svg", []),
    "tune": (["tune"], ".jsonl", []),
    "tune plot": (["tune", "results.jsonl", "--plot"], ".png", []),
    "demo": (["demo", "--page"], ".html", []),
}


@abuse
@pytest.mark.parametrize("place", UNWRITABLE)
@pytest.mark.parametrize("command", COMMANDS)
def test_an_output_that_cannot_be_written_is_noticed_before_the_work(
    run: Callable[..., Ran], place: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(options, "load_model", lambda *_: pytest.fail("the work has begun"))
    before, ending, after = COMMANDS[command]
    (tmp_path / f"folder{ending}").mkdir()
    ran = run(*before, place.format(ending), *after)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.count("\n") == 1
    assert any(word in ran.err for word in ("no such folder", "directory", "Permission denied", "not permitted"))
    assert [path.name for path in tmp_path.iterdir()] == [f"folder{ending}"]


@abuse
def test_the_file_of_a_rival_is_looked_at_too(
    run: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "load_model", lambda *_: pytest.fail("the work has begun"))
    (tmp_path / "a.full.jsonl").mkdir()
    ran = run("trace", tmp_path / "a.jsonl")
    assert ran.code == 1
    assert "a.full.jsonl: Is a directory" in ran.err


def test_looking_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("older")
    check_writable(tmp_path / "a")
    check_writable(tmp_path / "b")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "older"}
    with pytest.raises(OSError) as raised:  # noqa: PT011 - its number says it
        check_writable(tmp_path)
    assert raised.value.errno == errno.EISDIR
