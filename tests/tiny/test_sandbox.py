"""The sandbox runs small functions and refuses everything else."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lsp.tiny.tasks import CouldNotJudge, code, generate, sandbox, verify
from lsp.tiny.tasks.sandbox import Refused, check, execute, run_programs
from tests.support import ROOT

abuse = pytest.mark.abuse("sandbox")

DOUBLE = "def f(x):\n    x = x * 2\n    return x"


def test_outputs_and_notes_of_every_line():
    source = (
        "def f(x):\n"
        "    x = x + 3\n"
        "    if x > 9:\n"
        "        x = x % 4\n"
        "        if x == 0:\n"
        "            x = 50\n"
        "    return x"
    )
    run = execute(source, "f", [7, 9, 1])
    assert run.outputs == [2, 50, 4]
    assert run.notes == ["7", "10", "yes", "2", "no", "skip", "2"]


@abuse
@pytest.mark.parametrize(
    "body",
    [
        pytest.param("import os", id="import"),
        pytest.param("x = x.real", id="attribute"),
        pytest.param("x = x.__class__", id="dunder"),
        pytest.param("x = __builtins__", id="builtins"),
        pytest.param("while x: x = 1", id="while"),
        pytest.param("for i in x: x = 1", id="for"),
        pytest.param("x = [i for i in x]", id="comprehension"),
        pytest.param("x = f(x)", id="recursion"),
        pytest.param("x = print(x)", id="call"),
        pytest.param("x = x ** 9", id="power"),
        pytest.param("x = x << 9", id="shift"),
        pytest.param("x = 99999999", id="large constant"),
        pytest.param("x = 'a' * x", id="string"),
        pytest.param("x = 1.5", id="float"),
        pytest.param("x = lambda: x", id="lambda"),
        pytest.param("def g(y): return y", id="inner function"),
        pytest.param("global x", id="global"),
        pytest.param("x = (", id="syntax error"),
        pytest.param("x = ().__class__.__base__.__subclasses__()", id="all classes"),
        pytest.param("x = x[0]", id="subscript"),
        pytest.param("x[0] = 1", id="item assignment"),
        pytest.param("x.real = 1", id="attribute assignment"),
        pytest.param("x, y = 1, 2", id="unpacking"),
        pytest.param("x = (1, 2)", id="tuple"),
        pytest.param("x = {1: 2}", id="dict"),
        pytest.param("x = {1}", id="set"),
        pytest.param("x = f'{x}'", id="format string"),
        pytest.param("x = b'a'", id="bytes"),
        pytest.param("x = None", id="none"),
        pytest.param("x = ...", id="ellipsis"),
        pytest.param("x = 1j", id="complex"),
        pytest.param("x = (y := 1)", id="walrus"),
        pytest.param("x += 1", id="in place"),
        pytest.param("x: int = 1", id="annotation"),
        pytest.param("x = x / 2", id="division"),
        pytest.param("x = x @ x", id="matrix product"),
        pytest.param("x = x | 1", id="or"),
        pytest.param("x = ~x", id="invert"),
        pytest.param("x = not x", id="not"),
        pytest.param("x = x and 1", id="and"),
        pytest.param("x = 1 if x else 2", id="conditional expression"),
        pytest.param("x = x in x", id="in"),
        pytest.param("x = x is x", id="is"),
        pytest.param("x = yield x", id="generator"),
        pytest.param("x = await x", id="await"),
        pytest.param("async def g(): pass", id="async"),
        pytest.param("class A: pass", id="class"),
        pytest.param("del x", id="del"),
        pytest.param("assert x", id="assert"),
        pytest.param("raise x", id="raise"),
        pytest.param("with x: x = 1", id="with"),
        pytest.param("try: x = 1\n    except: x = 2", id="try"),
        pytest.param("match x:\n        case 1: x = 1", id="match"),
        pytest.param("nonlocal x", id="nonlocal"),
        pytest.param("_x = 1", id="private name"),
        pytest.param("x = __import__('os')", id="import by call"),
        pytest.param("x = x\0", id="null byte"),
        pytest.param("x = 1 " + "+ 1 " * 2000, id="long"),
        pytest.param("x = " + "-" * 3000 + "x", id="deep"),
    ],
)
def test_refuses(body):
    source = f"def f(x):\n    {body}\n    return 1"
    with pytest.raises(Refused):
        check(source)
    assert run_programs([(source, "f", [1])]) == [None]


@abuse
def test_refuses_more_than_one_function_and_other_arguments():
    for source in (
        f"{DOUBLE}\nx = 1",
        f"{DOUBLE}\n{DOUBLE}",
        "x = 1",
        "def f(x, y):\n    return x",
        "def f(x=1):\n    return x",
        "@f\ndef f(x):\n    return x",
        "def f(*x):\n    return 1",
        "def f(x: f):\n    return 1",
        "def f(x) -> f:\n    return 1",
    ):
        with pytest.raises(Refused):
            check(source)


@abuse
def test_values_that_grow_too_large_are_stopped():
    source = "def f(x):\n" + "    x = x * x\n" * 60 + "    return x"
    before = time.monotonic()
    with pytest.raises(Refused, match="too large"):
        execute(source, "f", [3])
    assert time.monotonic() - before < 1


def child(execute: str) -> list[str]:
    """The command of a sandbox whose `execute` is replaced."""
    lines = (
        "import os, sys, time",
        f"sys.path.insert(0, {str(Path(sandbox.__file__).parent)!r})",
        "import sandbox",
        "real = sandbox.execute",
        f"sandbox.execute = lambda source, *rest: {execute}",
        "sandbox._serve()",
    )
    return [sys.executable, "-c", "\n".join(lines)]


@abuse
@pytest.mark.parametrize(
    "evil",
    [
        pytest.param("os._exit(1)", id="dies"),
        pytest.param("time.sleep(60)", id="hangs"),
        pytest.param("bytearray(1 << 30)", id="eats memory"),
        pytest.param("open('sandbox.txt', 'w').write('x')", id="writes a file"),
    ],
)
def test_a_bad_job_costs_itself_only(monkeypatch, tmp_path, evil):
    monkeypatch.chdir(tmp_path)
    command = child(f"({evil}) if source == 'evil' else real(source, *rest)")
    monkeypatch.setattr(sandbox, "CHILD", command)
    before = time.monotonic()
    found = run_programs([(DOUBLE, "f", [1]), ("evil", "f", [1]), (DOUBLE, "f", [2])])
    assert [run and run.outputs for run in found] == [[2], None, [4]]
    assert time.monotonic() - before < 30
    assert not any(path.stat().st_size for path in tmp_path.iterdir())


@abuse
def test_deep_nesting_and_errors_are_failures_not_crashes():
    deep = "def f(x):\n    return " + "(" * 1500 + "x" + ")" * 1500
    jobs = [(deep, "f", [1]), ("def f(x):\n    return x // 0", "f", [1]), (DOUBLE, "f", [5])]
    assert [run and run.outputs for run in run_programs(jobs)] == [None, None, [10]]


@abuse
@pytest.mark.parametrize(
    ("command", "why"),
    [
        pytest.param(["/no/such/python"], "/no/such/python: No such file or directory", id="no program"),
        pytest.param([sys.executable, "-c", "raise SystemExit(3)"], "it ended with code 3", id="ends at once"),
        pytest.param([sys.executable, "-c", "import nothing_here"], "No module named 'nothing_here'", id="broken"),
        pytest.param([sys.executable, "-c", "print('hello'); input()"], "got b'hello\\n'", id="says something else"),
        pytest.param([sys.executable, "-c", "input()"], "within 1 s, got None", id="never ready"),
        pytest.param(["/dev/null"], "Permission denied", id="not a program"),
    ],
)
def test_a_child_that_cannot_start_judges_nothing(monkeypatch, command, why):
    monkeypatch.setattr(sandbox, "CHILD", command)
    monkeypatch.setattr(sandbox, "SECONDS_TO_START", 1.0 if "within 1 s" in why else 60.0)
    with pytest.raises(CouldNotJudge, match="Could not judge programs: the process that runs them cannot start") as got:
        run_programs([(DOUBLE, "f", [1])])
    assert why in str(got.value)
    assert run_programs([]) == []


@abuse
def test_a_right_answer_that_does_not_run_judges_nothing(monkeypatch):
    (problem,) = generate("code", 1)
    monkeypatch.setattr(code, "run_programs", lambda jobs: [None] * len(jobs))
    with pytest.raises(CouldNotJudge, match="the right answer itself did not run"):
        verify([problem], [problem.answer])


@abuse
def test_without_limits_only_programs_are_refused(tmp_path):
    """As on Windows, where Python has no module resource."""
    script = """
import sys
sys.modules["resource"] = None
from lsp.cli import run
from lsp.tiny.tasks import TASKS, CouldNotJudge, generate, verify
for task in TASKS:
    (problem,) = generate(task, 1)
    try:
        assert verify([problem], [problem.answer]) == [True]
        assert task != "code"
    except CouldNotJudge:
        assert task == "code"
new = ["--max-new-tokens", "8"]
assert run(["generate", "x", *new]) == 0
assert run(["trace", "t.html", "--task", "code", *new]) == 0
small = ["--problems", "1", "--flips", "0", "--tail", "dropped", *new]
assert run(["compare", "--task", "countdown", *small]) == 0
assert run(["demo", "--problems", "1", "--page", "d.html"]) == 0
sys.exit(run(["compare", "--task", "code", *small]))
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "code is left out. Could not judge programs" in done.stdout
    *_, last = done.stderr.splitlines()
    assert last.startswith("lsp: error: Could not judge programs: their limits need Python's module resource")
    assert done.returncode == 1
