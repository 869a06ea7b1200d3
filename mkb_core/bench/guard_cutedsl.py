"""CuTe DSL: inline PTX and machine code that the DSL did not write, and which images it made."""

import importlib
import re
import sys
from pathlib import Path
from typing import Any

from mkb_core.bench.guard import Guard

FAT_BINARY = b"\x50\xed\x55\xba"


def install(guard: Guard) -> None:
    """Wrap the compile step: it sees the traced module before, and the machine code after."""
    import cutlass
    from cutlass._mlir.dialects import llvm, nvvm
    from cutlass.base_dsl.compiler import Compiler

    home = f"{Path(str(cutlass.__file__)).parent}/"
    texts: set[str] = set()  # inline PTX that the DSL itself wrote
    kinds = (llvm.InlineAsmOp, "asm_string"), (nvvm.InlinePtxOp, "ptxCode")
    for kind, key in kinds:
        _remember(kind, key, home, texts)
    original = Compiler.compile

    def watched(self: Any, module: Any, pipeline: str, *args: Any, **kwargs: Any) -> Any:
        for text in _odd_operations(module, texts):
            guard.report(text)
        if re.search(r"link-libraries='?[^' }]", pipeline):
            guard.report("a library that is linked to the kernel")
        before = set(_images(module))
        result = original(self, module, pipeline, *args, **kwargs)
        for image in set(_images(module)) - before:
            guard.allow(image)
        return result

    setattr(Compiler, "compile", watched)  # noqa: B010  mypy refuses the plain assignment
    wrapped = [kind.__init__ for kind, _ in kinds]

    def compare() -> None:
        if Compiler.compile is not watched or [kind.__init__ for kind, _ in kinds] != wrapped:
            guard.report("the DSL's compiler is not what it was when it was loaded")

    guard.compare = compare


def _remember(kind: Any, key: str, home: str, texts: set[str]) -> None:
    """Keep the text of each operation of this kind that the DSL's own code makes, not its caller's."""
    original = kind.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        frame = sys._getframe(1)
        while frame.f_back and _hands_on(frame.f_code.co_filename, frame.f_code.co_name, home):
            frame = frame.f_back
        if frame.f_code.co_filename.startswith(home):
            texts.add(str(self.attributes[key].value))

    kind.__init__ = init


def _hands_on(file: str, function: str, home: str) -> bool:
    """Whether this is one of the DSL's builders and decorators, which pass on a text that their caller wrote."""
    builder = file.startswith((f"{home}_mlir", f"{home}base_dsl/"))
    return builder or (file.startswith(home) and ("inline_ptx" in function or function in ("wrapper", "wrapped")))


def _odd_operations(module: Any, texts: set[str]) -> list[str]:
    """Inline PTX that the DSL did not write, and machine code before the compiler has run."""
    walk_on: Any = importlib.import_module("cutlass._mlir.ir").WalkResult.ADVANCE
    found: list[str] = []
    keys = {"llvm.inline_asm": "asm_string", "nvvm.inline_ptx": "ptxCode"}

    def visit(operation: Any) -> Any:
        key = keys.get(operation.name)
        if key and (text := str(operation.attributes[key].value)) not in texts:
            found.append(f"inline PTX: {text[:80]!r}")
        elif operation.name == "gpu.binary":
            found.append("machine code in the traced module")
        return walk_on

    module.operation.walk(visit)
    return found + ["machine code in the traced module"] * bool(_images(module))


def _images(module: Any) -> list[bytes]:
    """The fat binaries among a module's constants."""
    values = [o.attributes["value"] for o in module.body.operations if "value" in o.attributes]
    data = [getattr(value, "value_bytes", b"") for value in values]
    return [image for image in data if image.startswith(FAT_BINARY)]
