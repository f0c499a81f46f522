"""The opcode table: which instructions, with which modifiers and types, the emulator knows.

A builder is registered under a regular expression that must match the whole opcode, modifiers and
types included; its named groups tell the builder what was matched. So the expressions *are* the
table of allowed modifiers, and whatever none of them matches is refused. A builder turns one
instruction into a `Step`, a closure that executes it for all threads of a CTA.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from .dtypes import Array
from .errors import UnsupportedPtx
from .parse import Instruction, Kernel

if TYPE_CHECKING:
    from .cta import Cta
    from .operands import Operands

Mask = Array | None  # which threads execute; None means all of them
Step = Callable[["Cta", Mask], None]
Modifiers = dict[str, str]  # named groups of the expression; "" where a group is absent
Builder = Callable[[Instruction, Modifiers, "Operands"], Step]

_TABLE: dict[str, list[tuple[re.Pattern[str], Builder]]] = {}


def opcode(*expressions: str) -> Callable[[Builder], Builder]:
    """Register a builder. Dots stand for themselves: ``add.(?P<type>s32|u32)``."""

    def register(builder: Builder) -> Builder:
        for expression in expressions:
            family = re.match(r"\w+", expression)[0]
            pattern = re.compile(expression.replace(".", r"\."))
            _TABLE.setdefault(family, []).append((pattern, builder))
        return builder

    return register


def knows(family: str) -> bool:
    """Whether any instruction of a family, such as "mma", can be executed."""
    return family in _TABLE


def build(instruction: Instruction, operands: Operands) -> Step:
    """The step of one instruction; raises UnsupportedPtx naming it if the table lacks it."""
    known = _TABLE.get(instruction.family)
    if known is None:
        raise UnsupportedPtx(f"opcode: {instruction.text}")
    for pattern, builder in known:
        if found := pattern.fullmatch(instruction.opcode):
            groups = {name: text or "" for name, text in found.groupdict().items()}
            try:
                return builder(instruction, groups, operands)
            except UnsupportedPtx as error:
                raise UnsupportedPtx(f"{error}: {instruction.text}") from None
            except ValueError as error:  # too few or too many operands to unpack
                raise UnsupportedPtx(f"operands ({error}): {instruction.text}") from None
    raise UnsupportedPtx(f"modifiers or types: {instruction.text}")


def build_all(kernel: Kernel, operands: Operands) -> list[Step | None]:
    """Steps of a whole kernel; None for control flow, which the CTA executes itself."""
    return [None if is_control(instruction) else build(instruction, operands) for instruction in kernel.instructions]


_CONTROL = re.compile(r"bra|bra\.uni|ret|exit|bar\.sync|barrier\.sync\.aligned|barrier\.sync")


def is_control(instruction: Instruction) -> bool:
    return _CONTROL.fullmatch(instruction.opcode) is not None
