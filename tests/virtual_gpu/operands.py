"""Operands as closures: reading registers in a type, writing results under a mask, addresses.

PTX demands that an operand's width equals the instruction's type; only loads, stores and
conversions may use wider registers. Anything else is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from .dtypes import RAW, TYPES, Array, bits_of
from .errors import UnsupportedPtx
from .memory import SHARED_BASE
from .parse import Address, Immediate, Kernel, Negated, Operand, Register, Sink, Special, Symbol
from .table import Mask

if TYPE_CHECKING:
    from .cta import Cta

Source = Callable[["Cta"], Array]
Target = Callable[["Cta", Array, Mask], None]

SPECIALS = ("%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%laneid", "%warpid")
SPECIALS += tuple(f"%{name}.{axis}" for name in ("ctaid", "nctaid") for axis in "xyz")


def _fits(value: int, bits: int) -> bool:
    """Whether a literal, perhaps written sign-extended to 64 bits, is one of a type's values."""
    if value >= 1 << 63:
        value = value if bits == 64 else value - (1 << 64)
    return -(1 << (bits - 1)) <= value < 1 << bits


class Operands:
    """Makes operand closures for a kernel of a given number of threads."""

    def __init__(self, kernel: Kernel) -> None:
        self.threads = kernel.threads
        self.params = dict(kernel.params)
        self.shared_symbols = frozenset(kernel.shared_symbols)

    def source(self, operand: Operand, type_name: str, *, wider: bool = False) -> Source:
        """Read an operand as an array of `type_name`, one element per thread."""
        if isinstance(operand, Register):
            return self._register(operand, type_name, wider)
        if isinstance(operand, Negated) and type_name == "pred":
            slot = operand.predicate.slot
            return lambda cta: ~cta.registers[slot]
        if isinstance(operand, Special) and type_name in ("u32", "b32", "s32"):
            return self._special(operand.name, type_name)
        return self.constant(self._bits(operand, type_name), type_name)

    def _register(self, register: Register, type_name: str, wider: bool) -> Source:
        slot, dtype, bits = register.slot, TYPES[type_name], bits_of(type_name)
        if register.bits == bits:
            return lambda cta: cta.registers[slot].view(dtype)  # fails on None, never written
        if wider and register.bits > bits > 1:
            raw = RAW[bits]
            return lambda cta: cta.registers[slot].astype(raw).view(dtype)
        raise UnsupportedPtx(f"register {register.name} as .{type_name}")

    def _special(self, name: str, type_name: str) -> Source:
        if name not in SPECIALS:
            raise UnsupportedPtx(f"special register {name}")
        dtype = TYPES[type_name]
        return lambda cta: cta.specials[name].view(dtype)

    def _bits(self, operand: Operand, type_name: str) -> int:
        """The bit pattern of a constant operand in a type."""
        bits = bits_of(type_name)
        if isinstance(operand, Symbol) and operand.name in self.shared_symbols and bits >= 32:
            return SHARED_BASE
        if isinstance(operand, Immediate):
            if operand.float_bits:
                if operand.float_bits == bits and type_name[0] in "fb":
                    return operand.value
            elif type_name == "pred":
                return int(operand.value != 0)
            elif type_name[0] != "f" and _fits(operand.value, bits):
                return operand.value & ((1 << bits) - 1)
        raise UnsupportedPtx(f"operand {operand} as .{type_name}")

    def constant(self, bits: int, type_name: str) -> Source:
        values = np.full(self.threads, bits, RAW[bits_of(type_name)]).view(TYPES[type_name])
        values.flags.writeable = False
        return lambda cta: values

    def integer(self, operand: Operand) -> int:
        """An operand that must be an integer literal."""
        if isinstance(operand, Immediate) and not operand.float_bits:
            return operand.value
        raise UnsupportedPtx(f"operand {operand} where a literal is expected")

    def target(self, operand: Operand, type_name: str, *, wider: bool = False) -> Target:
        """Write an array of `type_name` to a register, for the threads of a mask.

        A wider register, where allowed, gets the value extended as its type says.
        """
        if isinstance(operand, Sink):
            return lambda cta, values, mask: None
        if not isinstance(operand, Register):
            raise UnsupportedPtx(f"operand {operand} as a result")
        slot, bits = operand.slot, bits_of(type_name)
        raw = RAW[operand.bits]
        extend = None
        if operand.bits != bits:
            if not (wider and operand.bits > bits > 1):
                raise UnsupportedPtx(f"register {operand.name} for a .{type_name} result")
            extend = np.dtype(f"int{operand.bits}") if type_name[0] == "s" else raw
        poison = raw.type(True) if operand.bits == 1 else raw.type((1 << operand.bits) - 1)

        def write(cta: Cta, values: Array, mask: Mask) -> None:
            if extend is not None:
                values = values.astype(extend)
            values = values.view(raw)
            if mask is not None:
                old = cta.registers[slot]
                values = np.where(mask, values, poison if old is None else old)
            cta.registers[slot] = values

        return write

    def address(self, operand: Operand) -> Source:
        """The addresses that a bracketed operand stands for, as int64."""
        if not isinstance(operand, Address):
            raise UnsupportedPtx(f"operand {operand} where an address is expected")
        base, offset = operand.base, operand.offset
        if isinstance(base, Symbol) and base.name in self.shared_symbols:
            return self.constant(SHARED_BASE + offset, "s64")
        if not isinstance(base, Register) or base.bits not in (32, 64):
            raise UnsupportedPtx(f"address {base}")
        slot = base.slot
        if base.bits == 64:
            return lambda cta: cta.registers[slot].view(np.int64) + offset
        return lambda cta: cta.registers[slot].astype(np.int64) + offset
