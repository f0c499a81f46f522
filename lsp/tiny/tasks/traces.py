"""Small programs with loops over three variables, executed line by line.

    Trace from a = 3, k = 0, n = 5:
    A while a < 9 else D
    B a = a + 4
    C loop a < 9 from B
    D end

    start  # a 3 k 0 n 5
    A while a < 9 else D  # a 3 k 0 n 5 yes
    B a = a + 4  # a 7 k 0 n 5
    C loop a < 9 from B  # a 7 k 0 n 5 yes
    B a = a + 4  # a 11 k 0 n 5
    ...

Every line of the answer repeats the statement that was executed, with its label, and tells the values
after it. So the label of a line follows from the line before alone, its statement is found in the
program by the label, and its values follow from the statement and the values before. `for` sets its
counter; `next` adds one to it and goes back while it is at most the bound. The level is the largest
number of tokens of an answer. The judge executes the program.
"""

import functools
import random
import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lsp.tiny.tasks.problem import MAX_NUMBER, PIECES, TEMPLATES, Problem

NAMES = ("a", "k", "n")
SHORTEST = {185: 120, 250: 186, 335: 251, 420: 336}
LEVELS = tuple(SHORTEST)
MOST_PROMPT = 99
"""Tokens of the longest prompt."""

MOST_LINES = 40
FEWEST = 12
"""Tokens of the line of the shortest assignment."""

STARTS = 8
"""How often other values are tried with a program."""

LARGEST_ADDED = 12
"""Of the values that a program adds or subtracts: number facts that arithmetic asks for too."""

LABELS = "ABCDEFGHIJKLMN"
"""Of a program's lines; one with more is not asked for."""

STATEMENT = re.compile(
    r"(?P<label>[A-Z]) (?:"
    r"(?P<kind>while|loop) (?P<left>[akn]) (?P<operator>[<>]) (?P<right>\d+) (?:else|from) (?P<jump>[A-Z])"
    r"|(?P<first>for) (?P<counter>[akn]) = (?P<from>\d+)"
    r"|(?P<next>next) (?P<counted>[akn]) to (?P<bound>\d+) from (?P<back>[A-Z])"
    r"|(?P<target>[akn]) = (?P<value>[akn]|\d+)(?: (?P<sign>[-+*%]|//) (?P<operand>[akn]|\d+))?"
    r"|end)"
)

State = dict[str, int]


class OutOfRange(Exception):
    """A value left 0 to MAX_NUMBER, or the program did not end."""


@dataclass(frozen=True)
class Statement:
    """One line of a program, and the index of the line that it may jump to."""

    text: str
    parts: dict[str, str]
    jump: int = -1


@functools.cache
def _parts(line: str) -> dict[str, str] | None:
    match = STATEMENT.fullmatch(line)
    return match and {name: text for name, text in match.groupdict().items() if text is not None}


def parse(program: Sequence[str]) -> list[Statement]:
    """The statements of a program, in its order."""
    lines, places = list[dict[str, str]](), dict[str, int]()
    for line in program:
        if (parts := _parts(line)) is None or parts["label"] in places:
            raise ValueError(f"Invalid program: expected a new label and a statement, got {line!r}")
        places[parts["label"]] = len(lines)
        lines.append(parts)
    found = []
    for text, parts in zip(program, lines, strict=True):
        label = parts.get("jump") or parts.get("back")
        if label is not None and label not in places:
            raise ValueError(f"Invalid program: expected a jump to one of its labels, got {text!r}")
        found.append(Statement(text, parts, -1 if label is None else places[label]))
    return found


def execute(program: Sequence[str], start: State) -> list[str]:
    """The lines of the trace; raises OutOfRange where there is none."""
    return _run(parse(program), start, MOST_LINES)


def _run(statements: Sequence[Statement], start: State, most: int) -> list[str]:
    state, at = dict(start), 0
    lines = [f"start  # {_values(state)}"]
    while at < len(statements):
        statement = statements[at]
        holds = _step(statement.parts, state)
        if len(lines) == most or min(state.values()) < 0 or max(state.values()) > MAX_NUMBER:
            raise OutOfRange(statement.text)
        lines.append(_line(statement.text, state, holds))
        jumps = holds is not None and holds != (statement.parts.get("kind") == "while")
        at = statement.jump if jumps else at + 1
    return lines


def _line(statement: str, state: State, holds: bool | None) -> str:
    verdict = "" if holds is None else " yes" if holds else " no"
    return f"{statement}  # {_values(state)}{verdict}"


def _values(state: State) -> str:
    return " ".join(f"{name} {state[name]}" for name in NAMES)


def _step(parts: dict[str, str], state: State) -> bool | None:
    """Execute one statement; whether its condition holds, if it has one."""
    if "kind" in parts:
        left, right = state[parts["left"]], int(parts["right"])
        return left < right if parts["operator"] == "<" else left > right
    if "first" in parts:
        state[parts["counter"]] = int(parts["from"])
    elif "next" in parts:
        state[parts["counted"]] += 1
        return state[parts["counted"]] <= int(parts["bound"])
    elif "target" in parts:
        state[parts["target"]] = _value(parts, state)
    return None


def _value(parts: dict[str, str], state: State) -> int:
    left = _read(parts["value"], state)
    if "sign" not in parts:
        return left
    right = _read(parts["operand"], state)
    sign = parts["sign"]
    if sign in "+-":
        if right > LARGEST_ADDED:
            raise OutOfRange(parts["operand"])
        return left + right if sign == "+" else left - right
    if sign == "*":
        return left * right
    if right == 0:
        raise OutOfRange(parts["operand"])
    return left // right if sign == "//" else left % right


def _read(text: str, state: State) -> int:
    return state[text] if text in state else int(text)


class _Writer:
    """Writes a program in which no two loops share a bound and no two assignments their end."""

    def __init__(self, rng: random.Random, brief: bool):
        self.rng, self.brief = rng, brief
        self.lines: list[str] = []
        self.used: set[str] = set()

    @property
    def label(self) -> str:
        """That of the line to be written next."""
        return string.ascii_uppercase[len(self.lines)]

    def write(self, text: str) -> None:
        self.lines.append(f"{self.label} {text}")

    def assign(self, kept: Sequence[str]) -> None:
        """An assignment to a variable that no loop around it needs."""
        rng = self.rng
        while True:
            name = rng.choice([n for n in NAMES if n not in kept])
            sign = rng.choices(("+", "-", "*", "//", "%", "="), (34, 34, 5, 7, 8, 12))[0]
            constant = rng.randint(2, 7) if sign == "%" else 2 if sign in ("*", "//") else rng.randint(1, 12)
            operand = str(constant)
            if sign in "+-" and rng.random() < 0.35:
                operand = rng.choice([n for n in NAMES if n != name])
            end = f"{sign} {operand}"
            if end not in self.used:
                break
        self.used.add(end)
        self.write(f"{name} {end}" if sign == "=" else f"{name} = {name} {end}")

    def loop(self, kept: tuple[str, ...], nested: bool) -> None:
        """A loop of either kind, one to three assignments in it (one if `brief`) and perhaps another loop."""
        rng = self.rng
        name = rng.choice([n for n in NAMES if n not in kept])
        counted = rng.random() < 0.5
        head, tail, progress = self._for(name) if counted else self._while(name)
        place = len(self.lines)
        self.write(head)
        first = self.label
        parts = ["assign"] * (1 if self.brief else rng.choices((1, 2, 3), (4, 4, 2) if counted else (6, 3, 1))[0])
        parts += ["progress"] * bool(progress) + ["loop"] * nested
        rng.shuffle(parts)
        for part in parts:
            if part == "assign":
                self.assign((*kept, name))
            elif part == "loop":
                self.loop((*kept, name), False)
            else:
                self.write(progress)
        self.write(f"{tail} from {first}")
        if not counted:
            self.lines[place] += f" else {self.label}"

    def _for(self, name: str) -> tuple[str, str, str]:
        """Head, tail, and no statement that makes progress."""
        while True:
            first = self.rng.randint(1, 5)
            last = first + self.rng.randint(1, 5)
            bound, head = f"bound {last}", f"for {name} = {first}"
            if bound not in self.used and head not in self.used:
                self.used |= {bound, head}
                return head, f"next {name} to {last}", ""

    def _while(self, name: str) -> tuple[str, str, str]:
        """Head, tail, and the statement that makes progress."""
        while True:
            up, limit, by = self.rng.random() < 0.5, self.rng.randint(2, 40), self.rng.randint(1, 9)
            bound, end = f"bound {limit}", f"{'+' if up else '-'} {by}"
            if bound not in self.used and end not in self.used:
                self.used |= {bound, end}
                condition = f"{name} {'<' if up else '>'} {limit}"
                return f"while {condition}", f"loop {condition}", f"{name} = {name} {end}"


def _write(rng: random.Random) -> list[str]:
    """A program of one to three loops, one of them perhaps in another."""
    loops, nested = rng.choices(((1, False), (2, False), (1, True), (2, True), (3, False)), (2, 4, 4, 2, 2))[0]
    writer = _Writer(rng, brief=loops + nested == 3)  # else the prompt would be too long
    deep = rng.randrange(loops) if nested else -1
    for i in range(loops):
        if not writer.brief and rng.random() < 0.4:
            writer.assign(())
        writer.loop((), i == deep)
    if not writer.brief and rng.random() < 0.4:
        writer.assign(())
    writer.write("end")
    return writer.lines


def count(text: str) -> int:
    """The number of tokens of a text."""
    return len(re.findall(PIECES, text))


def propose(
    rng: random.Random, level: int, template: int = 0, wanted: Callable[[str], bool] = lambda key: True
) -> Problem:
    """A problem whose key is wanted: that is asked first, because most programs run too short or too far."""
    while True:
        program = _write(rng)
        if len(program) > len(LABELS) or not wanted("\n".join(program)):
            continue
        statements = parse(program)
        for _ in range(STARTS):
            start = {name: rng.randint(0, 20) for name in NAMES}
            if (answer := _answer(statements, start, level)) and _fits(program, start):
                facts = {"program": program, "start": start}
                return Problem("traces", level, _prompt(program, start, template), answer, "\n".join(program), facts)


def _answer(statements: Sequence[Statement], start: State, level: int) -> str:
    """The trace, if it has the length of this level."""
    try:
        answer = "\n".join(_run(statements, start, level // FEWEST))
    except OutOfRange:
        return ""
    return answer if SHORTEST[level] <= count(answer) <= level else ""


def _fits(program: Sequence[str], start: State) -> bool:
    return all(count(_prompt(program, start, template)) <= MOST_PROMPT for template in TEMPLATES)


def _prompt(program: Sequence[str], start: State, template: int) -> str:
    values, text = ", ".join(f"{name} = {start[name]}" for name in NAMES), "\n".join(program)
    return f"Run this program:\n{text}\nfrom {values}.\n" if template else f"Trace from {values}:\n{text}\n"


def drill(rng: random.Random) -> tuple[str, str]:
    """Two lines as of a trace: values, and a statement that is executed from them; no program is behind them."""
    while True:
        largest = rng.choice((20, MAX_NUMBER))
        state = {name: rng.randint(0, largest) for name in NAMES}
        statement = f"{rng.choice(LABELS)} {_statement(rng, state)}"
        before, parts = _values(state), _parts(statement)
        assert parts is not None
        try:
            holds = _step(parts, state)
        except OutOfRange:
            continue
        if min(state.values()) >= 0 and max(state.values()) <= MAX_NUMBER:
            return f"start  # {before}", _line(statement, state, holds)


def _statement(rng: random.Random, state: State) -> str:
    """A statement without its label: half are conditions, many with a bound near the value; a counter becomes small."""
    kind = rng.choices(("assign", "for", "while", "loop", "next"), (45, 5, 15, 20, 15))[0]
    name, first = rng.choice(NAMES), rng.randint(1, 5)
    if kind == "assign":
        writer = _Writer(rng, brief=False)
        writer.assign(())
        return writer.lines[0].partition(" ")[2]
    if kind == "for":
        return f"for {name} = {first}"
    jump = f"{'else' if kind == 'while' else 'from'} {rng.choice(LABELS)}"
    near = rng.random() < 0.5
    if kind == "next":
        bound = rng.randint(2, 10)
        state[name] = rng.randint(max(bound - 6, 0), bound)
        return f"next {name} to {bound} {jump}"
    bound = min(max(state[name] + rng.randint(-3, 3), 2), 40) if near else rng.randint(2, 40)
    return f"{kind} {name} {rng.choice('<>')} {bound} {jump}"


def verify(problem: Problem, text: str) -> bool:
    """Whether `text` is the execution of the program, line for line."""
    return text.split("\n") == execute(problem.facts["program"], problem.facts["start"])
