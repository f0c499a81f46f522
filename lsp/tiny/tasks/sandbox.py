"""Runs small untrusted functions: own process, time and memory limits, allowed syntax only.

A program is one function of one argument made of assignments, `if`, `return`, arithmetic and
comparisons. Anything else (imports, attributes, calls and so recursion, loops, strings, powers,
large numbers) is refused before it runs. This is a fence around the output of a language model,
not a jail for a determined attacker.

The file is also the script of the child process, so it imports nothing of `lsp` at the top.
"""

import ast
import importlib.util
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

LARGEST_CONSTANT = 10_000
LARGEST_VALUE = 10**9
LONGEST_SOURCE = 4_000
SECONDS = 1.0
SECONDS_TO_START = 60.0
MEGABYTES = 512
CHILD = [sys.executable, "-I", __file__]

ALLOWED = (
    *(ast.Module, ast.FunctionDef, ast.arguments, ast.arg, ast.Assign, ast.If, ast.Return),
    *(ast.Name, ast.Load, ast.Store, ast.Constant, ast.BinOp, ast.UnaryOp, ast.Compare),
    *(ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.USub),
    *(ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Pass),
)

Job = tuple[str, str, Sequence[int]]
"""Source, name of the function, inputs; the run of the first input is traced."""


class Refused(Exception):
    """The program holds something that is not allowed or grew too large."""


class CouldNotJudge(RuntimeError):
    """Programs cannot be run here, so nothing is known of the answers: they are neither right nor wrong."""


@dataclass
class Run:
    """Results for every input and, per source line, what the first input did there."""

    outputs: list[int | None]
    notes: list[str]


def check(source: str) -> ast.FunctionDef:
    """The function of `source`, or Refused."""
    if len(source) > LONGEST_SOURCE:
        raise Refused("too long")
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Refused(f"not Python: {error}") from None
    for node in ast.walk(tree):
        if not isinstance(node, ALLOWED):
            raise Refused(f"{type(node).__name__} is not allowed")
        if isinstance(node, ast.Constant):
            if not isinstance(node.value, int):
                raise Refused("only whole numbers are allowed")
            if node.value > LARGEST_CONSTANT:
                raise Refused(f"{node.value} is too large")
        if isinstance(node, ast.Name) and node.id.startswith("_"):
            raise Refused(f"the name {node.id} is not allowed")
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    if len(tree.body) != 1 or len(functions) != 1 or functions[0] is not tree.body[0]:
        raise Refused("expected one function and nothing else")
    function = functions[0]
    if not ast.unparse(function.args).isidentifier() or function.decorator_list or function.returns:
        raise Refused("expected one argument and no decorator or annotation")
    return function


def execute(source: str, name: str, inputs: Sequence[int]) -> Run:
    """Check and run in this process; `run_programs` does so in another one."""
    tree = check(source)
    if tree.name != name:
        raise Refused(f"expected a function named {name}")
    scope: dict[str, Any] = {"__builtins__": {}}
    exec(compile(source, "<program>", "exec"), scope)
    outputs, notes = [], list[str]()
    for i, value in enumerate(inputs):
        output, visited = _follow(scope[name], value)
        outputs.append(output)
        if i == 0:
            notes = _notes(tree, value, visited, output, len(source.split("\n")))
    return Run(outputs, notes)


def _follow(function: Any, value: int) -> tuple[int | None, list[tuple[int, dict[str, int]]]]:
    """Result and the lines visited, each with the variables before it ran."""
    visited: list[tuple[int, dict[str, int]]] = []

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            if any(abs(v) > LARGEST_VALUE for v in frame.f_locals.values()):
                raise Refused("a value grew too large")
            visited.append((frame.f_lineno, dict(frame.f_locals)))
        return trace

    sys.settrace(trace)
    try:
        return function(value), visited
    finally:
        sys.settrace(None)


def _notes(
    tree: ast.FunctionDef,
    value: int,
    visited: list[tuple[int, dict[str, int]]],
    output: int | None,
    lines: int,
) -> list[str]:
    """What each line did: the value assigned or returned, yes or no for an `if`, or skip."""
    notes = ["skip"] * lines
    notes[tree.lineno - 1] = str(value)
    statements = {node.lineno: node for node in ast.walk(tree) if isinstance(node, ast.stmt)}
    after = [*visited[1:], (0, {})]
    for (line, _), (next_line, variables) in zip(visited, after, strict=True):
        statement = statements[line]
        if isinstance(statement, ast.If):
            notes[line - 1] = "yes" if next_line == statement.body[0].lineno else "no"
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            notes[line - 1] = str(variables.get(statement.targets[0].id, ""))
        else:
            notes[line - 1] = str(output)
    return notes


def check_limits() -> None:
    """Refuses to run programs where a child's time and memory cannot be limited."""
    if importlib.util.find_spec("resource") is None:
        raise CouldNotJudge(
            "Could not judge programs: their limits need Python's module resource, which this system does not have "
            "(Windows?)"
        )


def run_programs(jobs: Sequence[Job]) -> list[Run | None]:
    """Run every job in a child process; None for what was refused, failed or took too long.

    Raises CouldNotJudge where there can be no such process.
    """
    results: list[Run | None] = []
    while len(results) < len(jobs):
        results += _run_until_death(jobs[len(results) :])
    return results


def _run_until_death(jobs: Sequence[Job]) -> list[Run | None]:
    """Results up to and including the job that killed the child, if one did."""
    from lsp.child import CannotStartError, Child, GoneError

    check_limits()
    results: list[Run | None] = []
    try:
        child = Child(CHILD, SECONDS_TO_START)
    except CannotStartError as error:
        raise CouldNotJudge(f"Could not judge programs: the process that runs them cannot start: {error}") from error
    with child:
        for job in jobs:
            try:
                reply = child.ask(job, 10 * SECONDS)
            except GoneError:
                return [*results, None]
            results.append(Run(**reply) if reply else None)
    return results


def _serve() -> None:
    """The child: one JSON job per line in, one result per line out."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MEGABYTES << 20, MEGABYTES << 20))
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    def alarm(*_: Any) -> None:
        raise Refused("took too long")

    signal.signal(signal.SIGALRM, alarm)
    print("ready", flush=True)
    for line in sys.stdin:
        source, name, inputs = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            reply = vars(execute(source, name, inputs))
        except Exception:
            reply = None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    _serve()
