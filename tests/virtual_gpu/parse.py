"""PTX text to instructions with typed operands.

Covers the one-kernel modules that Triton emits. Debug directives are skipped; device functions,
statically sized shared arrays and array parameters are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from .errors import UnsupportedPtx


@dataclass(frozen=True)
class Register:
    name: str
    slot: int
    bits: int  # 1 for predicates


@dataclass(frozen=True)
class Special:
    name: str  # such as %tid.x


@dataclass(frozen=True)
class Immediate:
    """An integer, or the bits of a float literal (then `float_bits` is its width)."""

    value: int
    float_bits: int = 0


@dataclass(frozen=True)
class Decimal:
    text: str  # a float written in decimal


@dataclass(frozen=True)
class Symbol:
    name: str  # a label, parameter or shared array


@dataclass(frozen=True)
class Address:
    base: Operand
    offset: int


@dataclass(frozen=True)
class Vector:
    items: tuple[Operand, ...]


@dataclass(frozen=True)
class Pair:
    first: Operand  # a|b
    second: Operand


@dataclass(frozen=True)
class Negated:
    predicate: Register  # !p


@dataclass(frozen=True)
class Sink:
    """``_``: a result that nobody wants."""


Operand = Register | Special | Immediate | Decimal | Symbol | Address | Vector | Pair | Negated | Sink


@dataclass(frozen=True)
class Instruction:
    opcode: str  # with its modifiers
    operands: tuple[Operand, ...]
    guard: Register | None
    negated: bool
    text: str

    @property
    def family(self) -> str:
        return self.opcode.split(".", 1)[0]


@dataclass
class Kernel:
    name: str
    threads: int
    params: list[tuple[str, str]]  # (name, type)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    registers: list[str] = field(default_factory=list)  # name of each slot
    shared_symbols: list[str] = field(default_factory=list)


_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\(([^)]*)\)([^{]*)\{")
_PARAM = re.compile(r"\.param\s+\.(\w+)(?:\s+\.ptr)?(?:\s+\.global)?(?:\s+\.align\s+\d+)?\s+(\w+)")
_SHARED = re.compile(r"\.shared\s+[^;]*?([\w$]+)\[(\d*)\]")
_SPACE = re.compile(r"\s*")
_LOCATION = re.compile(r"\.loc\s")
_LABEL = re.compile(r"([$\w]+):")
_GUARD = re.compile(r"@(!?)(%?[\w$]+)\s+(.*)", re.S)
_REG = re.compile(r"\.reg\s+\.(\w+)\s+(.*)", re.S)


def parse(text: str) -> Kernel:
    """Parse a module that holds one kernel."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
    entries = list(_ENTRY.finditer(text))
    if len(entries) != 1 or ".func" in text:
        raise UnsupportedPtx(f"expected one kernel and no functions, got {len(entries)} kernels")
    name, params, directives = entries[0].groups()
    kernel = Kernel(name, _thread_count(directives), [_param(p) for p in _listed(params)])
    for symbol, size in _SHARED.findall(text):
        if size:
            raise UnsupportedPtx(f"statically sized shared array {symbol}[{size}]")
        kernel.shared_symbols.append(symbol)
    _Body(kernel).read(text[entries[0].end() :])
    return kernel


def _thread_count(directives: str) -> int:
    found = re.search(r"\.reqntid\s+(\d+)(?:\s*,\s*1)*\s*(?:$|\.|\n)", directives)
    if found is None:
        raise UnsupportedPtx(f"a kernel without one-dimensional .reqntid: {directives.strip()}")
    return int(found[1])


def _param(text: str) -> tuple[str, str]:
    found = _PARAM.fullmatch(text)
    if found is None:
        raise UnsupportedPtx(f"parameter form: {text}")
    return found[2], found[1]


def _listed(text: str) -> list[str]:
    """Split at commas outside of brackets and braces."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char in "{[") - (char in "}]")
        if char == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    parts.append(text[start:].strip())
    return [part for part in parts if part]


def _statements(body: str) -> Iterator[str]:
    """Labels with their colon, scope braces, and statements without the semicolon."""
    at = 0
    while True:
        at = _SPACE.match(body, at).end()
        if at >= len(body):
            raise UnsupportedPtx("the kernel's body does not end")
        if body[at] in "{}":
            yield body[at]
            at += 1
        elif label := _LABEL.match(body, at):
            yield label[0]
            at = label.end()
        elif _LOCATION.match(body, at):
            at = body.index("\n", at)
        else:
            end = body.index(";", at)
            yield " ".join(body[at:end].split())
            at = end + 1


@dataclass
class _Inner:
    """A scope within the kernel's body: its first instruction, and the labels in it under their new names."""

    start: int
    labels: dict[str, str] = field(default_factory=dict)


class _Body:
    """Reads statements into a kernel, with one name table per brace scope."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.scopes: list[dict[str, Register]] = [{}]
        self.inner: list[_Inner] = []
        self.hidden = 0
        self.ranges: dict[str, tuple[int, int]] = {}  # %r -> (count, bits)

    def read(self, body: str) -> None:
        for statement in _statements(body):
            if statement == "{":
                self.scopes.append({})
                self.inner.append(_Inner(len(self.kernel.instructions)))
            elif statement == "}":
                self.scopes.pop()
                if not self.scopes:
                    return
                self._resolve(self.inner.pop())
            elif statement.endswith(":"):
                self._label(statement[:-1])
            elif declaration := _REG.fullmatch(statement):
                self._declare(declaration[1], declaration[2])
            elif statement.startswith(".pragma"):
                continue
            elif statement.startswith("."):
                raise UnsupportedPtx(f"directive: {statement}")
            else:
                self.kernel.instructions.append(self._instruction(statement))

    def _label(self, name: str) -> None:
        """Labels of an inner scope mean nothing outside of it, so they get names that no other scope has."""
        if self.inner:
            self.hidden += 1
            self.inner[-1].labels[name] = name = f"{name}@{self.hidden}"
        self.kernel.labels[name] = len(self.kernel.instructions)

    def _resolve(self, scope: _Inner) -> None:
        """Branches of a scope that has ended lead to its own labels first."""
        instructions = self.kernel.instructions
        for at in range(scope.start, len(instructions)):
            target = instructions[at].operands[0] if instructions[at].family == "bra" else None
            if isinstance(target, Symbol) and target.name in scope.labels:
                instructions[at] = replace(instructions[at], operands=(Symbol(scope.labels[target.name]),))

    def _declare(self, type_name: str, names: str) -> None:
        bits = 1 if type_name == "pred" else int(re.sub(r"\D", "", type_name))
        if bits not in (1, 8, 16, 32, 64):
            raise UnsupportedPtx(f"register type .{type_name}")
        for name in _listed(names):
            if ranged := re.fullmatch(r"(%?[\w$]+)<(\d+)>", name):
                self.ranges[ranged[1]] = (int(ranged[2]), bits)
            else:
                self.scopes[-1][name] = self._new(name, bits)

    def _new(self, name: str, bits: int) -> Register:
        self.kernel.registers.append(name)
        return Register(name, len(self.kernel.registers) - 1, bits)

    def _register(self, name: str) -> Register | None:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        ranged = re.fullmatch(r"(%?[A-Za-z_$]+)(\d+)", name)
        if ranged is None or ranged[1] not in self.ranges:
            return None
        count, bits = self.ranges[ranged[1]]
        if int(ranged[2]) >= count:
            return None
        self.scopes[0][name] = self._new(name, bits)
        return self.scopes[0][name]

    def _instruction(self, text: str) -> Instruction:
        guard, negated, rest = None, False, text
        if found := _GUARD.fullmatch(text):
            guard, negated, rest = self._register(found[2]), found[1] == "!", found[3]
            if guard is None or guard.bits != 1:
                raise UnsupportedPtx(f"guard: {text}")
        opcode, _, operands = rest.partition(" ")
        try:
            parsed = tuple(self._operand(item) for item in _listed(operands))
        except ValueError:
            raise UnsupportedPtx(f"operand form: {text}") from None
        return Instruction(opcode, parsed, guard, negated, text)

    def _operand(self, text: str) -> Operand:
        if text.startswith("{") and text.endswith("}"):
            return Vector(tuple(self._operand(item) for item in _listed(text[1:-1])))
        if text.startswith("[") and text.endswith("]"):
            return self._address(text[1:-1].strip())
        if text == "_":
            return Sink()
        if "|" in text:
            first, second = text.split("|")
            return Pair(self._operand(first.strip()), self._operand(second.strip()))
        if text.startswith("!"):
            predicate = self._register(text[1:])
            if predicate is None or predicate.bits != 1:
                raise ValueError(text)
            return Negated(predicate)
        if register := self._register(text):
            return register
        return _literal(text)

    def _address(self, text: str) -> Address:
        found = re.fullmatch(r"([%\w$.]+)\s*(?:\+\s*(-?\d+))?", text)
        if found is None:
            raise ValueError(text)
        return Address(self._operand(found[1]), int(found[2] or 0))


def _literal(text: str) -> Operand:
    if found := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", text):
        return Immediate(int(found[1], 16), 32)
    if found := re.fullmatch(r"0[dD]([0-9a-fA-F]{16})", text):
        return Immediate(int(found[1], 16), 64)
    if re.fullmatch(r"-?(?:0[xX][0-9a-fA-F]+|\d+)U?", text):
        return Immediate(int(text.rstrip("U"), 0))
    if re.fullmatch(r"-?\d+\.\d+", text):
        return Decimal(text)
    if re.fullmatch(r"%\w+(?:\.[xyz])?", text):
        return Special(text)
    if re.fullmatch(r"[$\w]+", text):
        return Symbol(text)
    raise ValueError(text)
