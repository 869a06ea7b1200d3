"""From parsed instructions to closures over `Lanes`: operand access, and the table of known instructions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import UnsupportedInstruction
from .lanes import Lanes
from .records import Address, Immediate, Instruction, Operand, Register, Symbol, Vector

Read = Callable[[Lanes], Any]
Write = Callable[[Lanes, Any], None]
Execute = Callable[[Lanes], None]
Decoder = Callable[[Instruction, "Scope"], Execute]

UNSIGNED: dict[int, np.dtype] = {1: np.dtype("u1"), 2: np.dtype("u2"), 4: np.dtype("u4"), 8: np.dtype("u8")}
PREDICATE = np.dtype(bool)
FLOATS = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")
_KINDS = {"u": "u", "b": "u", "s": "i", "f": "f"}
_SPECIAL = (
    "%tid. %ntid. %ctaid. %nctaid. %laneid %warpid %nwarpid %smid %nsmid %gridid %lanemask_ %clock %globaltimer "
    "%dynamic_smem_size"
).split()

_DECODERS: dict[tuple[str, str], Decoder] = {}


def instruction(*opcodes: str, family: str = "") -> Callable[[Decoder], Decoder]:
    """Register a decoder for opcodes; `family` is `float` or `int` where the type decides, else empty."""

    def register(decoder: Decoder) -> Decoder:
        for opcode in opcodes:
            _DECODERS[opcode, family] = decoder
        return decoder

    return register


def decoder(item: Instruction) -> Decoder:
    """The decoder of an instruction.

    Raises:
        UnsupportedInstruction: No group of instructions knows it.
    """
    family = "float" if item.modifiers and item.modifiers[-1] in FLOATS else "int"
    found = _DECODERS.get((item.opcode, family)) or _DECODERS.get((item.opcode, ""))
    if found is None:
        raise UnsupportedInstruction(item.name)
    return found


def dtype_of(name: str) -> np.dtype:
    """The NumPy type of a PTX type; `b` types are unsigned, 16-bit brain floats their bits.

    Raises:
        ValueError: For a type that is not supported.
    """
    if name == "pred":
        return PREDICATE
    if name in ("bf16", "bf16x2", "f16x2"):
        return UNSIGNED[2 if name == "bf16" else 4]
    if name[:1] in _KINDS and name[1:] in ("8", "16", "32", "64"):
        return np.dtype(f"{_KINDS[name[0]]}{int(name[1:]) // 8}")
    raise ValueError(f"type .{name}")


def only(item: Instruction, *allowed: str) -> None:
    """Refuse an instruction with a modifier (before its type) that its decoder does not know.

    Raises:
        UnsupportedInstruction: Such a modifier is there.
    """
    if not set(item.modifiers[:-1]) <= set(allowed):
        raise UnsupportedInstruction(item.name)


class Scope:
    """What decoding needs of a kernel: where registers and variables are."""

    def __init__(self, registers: dict[str, int], symbols: dict[str, int], params: dict[str, int]) -> None:
        """Takes register name -> bytes (0: predicate), variable name -> address, parameter name -> offset."""
        self.params = params
        self.slots = {name: (slot, width) for slot, (name, width) in enumerate(registers.items())}
        self.symbols = symbols

    def initial(self) -> list[Any]:
        """Start values: all bits set (a NaN, or -1), predicates false."""
        return [~UNSIGNED[w].type(0) if w else np.bool_(False) for _, w in self.slots.values()]

    def read(self, operand: Operand, dtype: np.dtype) -> Read:
        """A function that gives the operand's value in a NumPy type.

        Raises:
            ValueError: The operand has no value (an address, a list, an unknown name).
        """
        if isinstance(operand, Immediate):
            return _constant(operand.value, dtype)
        if isinstance(operand, Symbol):
            if operand.name not in self.symbols:
                raise ValueError(f"unknown name {operand.name}")
            return _constant(self.symbols[operand.name] + operand.offset, dtype)
        if not isinstance(operand, Register):
            raise ValueError(f"operand {operand}")
        if operand.name not in self.slots:
            return _special(operand.name, dtype)
        slot, width = self.slots[operand.name]
        if not width:
            return _predicate(slot, operand.negated)
        return _register(slot, width, dtype)

    def predicate(self, operand: Operand) -> Read:
        """A function that gives a predicate operand, as booleans."""
        return self.read(operand, PREDICATE)

    def write(self, operand: Operand) -> Write:
        """A function that writes a value of any NumPy type; narrower ones are extended by their sign.

        Raises:
            ValueError: The operand is no register.
        """
        if isinstance(operand, Register) and operand.name == "_":
            return lambda lanes, value: None
        if not isinstance(operand, Register) or operand.name not in self.slots:
            raise ValueError(f"destination {operand}")
        slot, width = self.slots[operand.name]
        if not width:
            return lambda lanes, value: lanes.assign(slot, value)
        return _writer(slot, UNSIGNED[width])

    def address(self, operand: Operand) -> Read:
        """A function that gives the address `[base + offset]` as int64.

        Raises:
            ValueError: The operand is no address.
        """
        if not isinstance(operand, Address):
            raise ValueError(f"address {operand}")
        base, offset = operand.base, np.int64(operand.offset)
        if not isinstance(base, Register):
            read = self.read(base, np.dtype("i8"))
        else:
            width = self.slots[base.name][1]
            bits = self.read(base, UNSIGNED[width])
            read = lambda lanes: bits(lanes).astype(np.int64)  # noqa: E731
        return (lambda lanes: read(lanes) + offset) if offset else read


def parts(operand: Operand) -> tuple[Operand, ...]:
    """The operands of a brace list or pair; a lone operand is a list of one."""
    return operand.parts if isinstance(operand, Vector) else (operand,)


def _constant(value: int, dtype: np.dtype) -> Read:
    if dtype == PREDICATE:
        truth = np.bool_(value != 0)
        return lambda lanes: truth
    bits = UNSIGNED[dtype.itemsize].type(value & ((1 << 8 * dtype.itemsize) - 1))
    constant = bits.view(dtype)
    return lambda lanes: constant


def _special(name: str, dtype: np.dtype) -> Read:
    if not name.startswith(tuple(_SPECIAL)):
        raise ValueError(f"register {name}")
    return lambda lanes: lanes.special(name).astype(dtype)


def _predicate(slot: int, negated: bool) -> Read:
    if negated:
        return lambda lanes: ~lanes.registers[slot]
    return lambda lanes: lanes.registers[slot]


def _register(slot: int, width: int, dtype: np.dtype) -> Read:
    unsigned = UNSIGNED[dtype.itemsize]
    if width != dtype.itemsize:
        return lambda lanes: lanes.registers[slot].astype(unsigned).view(dtype)
    if dtype == unsigned:
        return lambda lanes: lanes.registers[slot]
    return lambda lanes: lanes.registers[slot].view(dtype)


def _writer(slot: int, stored: np.dtype) -> Write:
    def write(lanes: Lanes, value: Any) -> None:
        kind = value.dtype
        if kind.kind == "f":
            value = value.view(UNSIGNED[kind.itemsize])
        lanes.assign(slot, value if value.dtype == stored else value.astype(stored))

    return write
