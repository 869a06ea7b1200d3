"""The parsed form of PTX: instructions and their operands, variables, kernels."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Register:
    """A register by its name, unique in the kernel; `negated` for `!%p`."""

    name: str
    negated: bool = False


@dataclass(frozen=True)
class Immediate:
    """A constant: an integer, or the bits of an IEEE float of `float_bytes` bytes."""

    value: int
    float_bytes: int = 0


@dataclass(frozen=True)
class Symbol:
    """The address of a variable or parameter, plus an offset in bytes."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Address:
    """A memory operand `[base + offset]`."""

    base: Register | Symbol | Immediate
    offset: int = 0


@dataclass(frozen=True)
class Vector:
    """A brace list `{a, b, ...}`, or the pair `d|p` of shfl and setp."""

    parts: tuple[Operand, ...]


Operand = Register | Immediate | Symbol | Address | Vector


@dataclass(frozen=True)
class Instruction:
    """One instruction: opcode, the modifiers after it, operands, guard predicate."""

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Register | None = None

    @property
    def name(self) -> str:
        """The opcode with all its modifiers, as PTX writes it."""
        return ".".join((self.opcode, *self.modifiers))


@dataclass(frozen=True)
class Variable:
    """A declared variable; `size` in bytes is 0 for dynamic shared memory."""

    name: str
    space: str
    align: int
    size: int
    initial: bytes = b""


@dataclass
class Kernel:
    """One `.entry`: parameters (name -> size in bytes), registers (name -> bytes, 0 for a predicate), code."""

    name: str
    params: dict[str, int] = field(default_factory=dict)
    registers: dict[str, int] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
