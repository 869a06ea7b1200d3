"""Parse PTX text into typed records: modules, kernels, instructions, operands (PTX ISA chapters 4 and 5)."""

from __future__ import annotations

import re

from .records import Address, Immediate, Instruction, Kernel, Operand, Register, Symbol, Variable, Vector

_TYPE_BYTES = {"8": 1, "16": 2, "32": 4, "64": 8}
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*(?:\(([^)]*)\))?([^{;]*)\{")
_PARAM = re.compile(r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr[^,]*?\s)?([\w$]+)\s*(?:\[(\d+)\])?\s*$")
_VARIABLE = re.compile(
    r"(?:\.(?:visible|extern|weak|common)\s+)*\.(shared|local|global|const)\s+(?:\.align\s+(\d+)\s+)?"
    r"\.(\w+)\s+([\w$]+)\s*((?:\[\d*\])*)\s*(?:=\s*(.+))?$",
    re.S,
)
_LABEL = re.compile(r"([A-Za-z_$%][\w$]*)\s*:(?!:)")
_GUARD = re.compile(r"@(!?)([%\w$]+)\s+")
_NUMBER = re.compile(r"-?(?:0[xX][0-9A-Fa-f]+|\d+)U?$")


def type_bytes(name: str) -> int:
    """Size in bytes of a PTX type such as `u32`; 0 for `pred`.

    Raises:
        ValueError: For a type with no such size (`b128`, a packed type).
    """
    if name == "pred":
        return 0
    digits = name[1:]
    if name[:1] not in "busf" or digits not in _TYPE_BYTES:
        raise ValueError(f"type .{name} is not supported")
    return _TYPE_BYTES[digits]


def parse(text: str) -> dict[str, Kernel]:
    """Parse a PTX module; returns its kernels by name.

    Raises:
        ValueError: Where the text is not the PTX that NVVM or NVRTC write.
    """
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text.replace("\0", ""), flags=re.S)
    text = re.sub(r"^\s*\.(?:loc|file)\s[^\n]*", "", text, flags=re.M)  # they end with their line
    heads = list(_ENTRY.finditer(text))
    bodies = [(match, _closing_brace(text, match.end())) for match in heads]
    outside = _without(text, [(match.start(), end) for match, end in bodies])
    shared = [v for line in re.split(r";", outside) if (v := _module_variable(line)) is not None]
    return {match.group(1): _kernel(match, text[match.end() : end - 1], shared) for match, end in bodies}


def _closing_brace(text: str, start: int) -> int:
    depth = 1
    for match in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            return match.end()
    raise ValueError("PTX: unbalanced braces")


def _without(text: str, spans: list[tuple[int, int]]) -> str:
    for start, end in reversed(spans):
        text = text[:start] + ";" + text[end:]
    return text


def _module_variable(line: str) -> Variable | None:
    match = re.search(r"(?:\.(?:visible|extern|weak|common)\s+)*\.(?:shared|global|const)\s", line)
    return parse_variable(line[match.start() :].strip()) if match else None


def parse_variable(text: str) -> Variable | None:
    """The variable that a declaration such as `.shared .align 16 .b8 s[64]` names; None where it is none."""
    match = _VARIABLE.match(text)
    if match is None:
        return None
    space, align, kind, name, dims, initial = match.groups()
    if kind[1:] not in _TYPE_BYTES:
        return None
    width = type_bytes(kind)
    size = width
    for count in re.findall(r"\[(\d*)\]", dims):
        size *= int(count or 0)
    return Variable(name, space, int(align or width), size, _initial(initial, width))


def _initial(text: str | None, width: int) -> bytes:
    values = [part.strip() for part in (text or "").strip("{} \n").split(",") if part.strip()]
    if not all(_NUMBER.match(v) or v.startswith(("0f", "0d")) for v in values):
        return b""
    return b"".join((_immediate(v).value % (1 << 8 * width)).to_bytes(width, "little") for v in values)


def _kernel(head: re.Match[str], body: str, shared: list[Variable]) -> Kernel:
    kernel = Kernel(head.group(1), variables={v.name: v for v in shared})
    for text in filter(str.strip, (head.group(2) or "").split(",")):
        match = _PARAM.match(text.strip())
        if match is None:
            raise ValueError(f"PTX: parameter {text.strip()!r} of kernel {kernel.name}")
        _, kind, name, count = match.groups()
        kernel.params[name] = int(count) if count else type_bytes(kind)
    _Body(kernel).read(body)
    return kernel


class _Body:
    """Reads a kernel's body; names declared in an inner `{ }` scope get the scope's number appended."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.scopes: list[dict[str, str]] = [{}]
        self.count = 0

    def read(self, body: str) -> None:
        for index, piece in enumerate(statements := list(_statements(body))):
            if piece == "{":
                self._open(statements[index + 1 :])
            elif piece == "}":
                self.scopes.pop()
            else:
                self._statement(piece)

    def _open(self, rest: list[str]) -> None:
        self.count += 1
        names: dict[str, str] = {}
        depth = 0
        for piece in rest:  # a label may be used before its place, so its scope is known from the start
            depth += (piece == "{") - (piece == "}")
            if depth < 0:
                break
            label = _LABEL.match(piece)
            if label and depth == 0:
                names[label.group(1)] = f"{label.group(1)}@{self.count}"
        self.scopes.append(names)

    def _statement(self, text: str) -> None:
        while match := _LABEL.match(text):
            self.kernel.labels[self._resolve(match.group(1))] = len(self.kernel.code)
            text = text[match.end() :].strip()
        if text.startswith(".reg"):
            self._registers(text)
        elif text.startswith("."):
            variable = parse_variable(text)
            if variable is not None:
                self.kernel.variables[variable.name] = variable
        elif text:
            self.kernel.code.append(self._instruction(text))

    def _registers(self, text: str) -> None:
        kind, names = text[4:].split(None, 1)
        width = type_bytes(kind.lstrip("."))
        for name in (part.strip() for part in names.split(",")):
            ranged = re.fullmatch(r"(.+)<(\d+)>", name)
            for each in [f"{ranged[1]}{i}" for i in range(int(ranged[2]))] if ranged else [name]:
                unique = each if len(self.scopes) == 1 else f"{each}@{self.count}"
                self.scopes[-1][each] = unique
                self.kernel.registers[unique] = width

    def _resolve(self, name: str) -> str:
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), name)

    def _instruction(self, text: str) -> Instruction:
        guard = None
        if match := _GUARD.match(text):
            guard = Register(self._resolve(match.group(2)), bool(match.group(1)))
            text = text[match.end() :]
        head, _, tail = text.replace("\t", " ").replace("\n", " ").partition(" ")
        opcode, *modifiers = head.split(".")
        operands = tuple(self._operand(part) for part in _split(tail))
        return Instruction(opcode, tuple(modifiers), operands, guard)

    def _operand(self, text: str) -> Operand:
        if text.startswith(("{", "(")):
            return Vector(tuple(self._operand(part) for part in _split(text[1:-1])))
        if text.startswith("["):
            return self._address(text[1:-1].strip())
        if "|" in text:
            return Vector(tuple(self._operand(part.strip()) for part in text.split("|")))
        if _NUMBER.match(text) or re.match(r"0[fd][0-9A-Fa-f]{8,16}$", text, re.I):
            return _immediate(text)
        if text.startswith("!"):
            return Register(self._resolve(text[1:]), negated=True)
        name, offset = _base_and_offset(text)
        resolved = self._resolve(name)
        if name.startswith("%") or name == "_" or resolved in self.kernel.registers:
            return Register(resolved)
        return Symbol(resolved, offset)

    def _address(self, text: str) -> Operand:
        if len(parts := _split(text)) > 1:  # a tensor map and its coordinates
            return Vector(tuple(self._operand(part) for part in parts))
        name, offset = _base_and_offset(text)
        base = self._operand(name)
        return Address(base, offset) if isinstance(base, Register | Symbol | Immediate) else base


def _statements(body: str) -> list[str]:
    """Split at `;`, and at the braces that open or close a scope rather than an operand list."""
    out: list[str] = []
    start = depth = 0
    for match in re.compile(r"[;{}]").finditer(body):
        here = body[start : match.start()].strip()
        mark = match.group()
        if mark == "{" and (depth or not re.fullmatch(r"(?:[\w$%]+\s*:\s*)*", here)):
            depth += 1
        elif mark == "}" and depth:
            depth -= 1
        elif not depth:
            out += [part for part in (here, mark if mark != ";" else "") if part]
            start = match.end()
    return out


def _split(text: str) -> list[str]:
    """Split at the commas outside every bracket."""
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char in "[{(") - (char in "]})")
        if char == "," and not depth:
            parts.append(text[start:i].strip())
            start = i + 1
    parts.append(text[start:].strip())
    return [part for part in parts if part]


def _base_and_offset(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"([^+\s]+)\s*\+\s*(-?(?:0[xX][0-9A-Fa-f]+|\d+))", text)
    return (match[1], int(match[2], 0)) if match else (text, 0)


def _immediate(text: str) -> Immediate:
    if text[:2].lower() == "0f" and len(text) == 10:
        return Immediate(int(text[2:], 16), 4)
    if text[:2].lower() == "0d" and len(text) == 18:
        return Immediate(int(text[2:], 16), 8)
    return Immediate(int(text.rstrip("U"), 0))
