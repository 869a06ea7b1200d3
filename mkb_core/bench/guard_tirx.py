"""TIRx: what in an IRModule or in TVM's registries puts CUDA text past the language, and which images TVM made."""

import os
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any

from mkb_core.bench.guard import Guard

IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
# What TVM lowers its arithmetic to, and CUDA's own names for the same: h for halves, __ for the fast forms.
MATH = re.compile(
    r"(?:__|__nv_|h2?)?(?:acosh?|asinh?|atan2?h?|abs|cbrt|ceil|clz|copysign|cosh?|cospi|dp[24]a|erf|erfc|erfinv|exp|"
    r"exp2|exp10|expm1|fabs|fdim|fdividef?|ffs|floor|fma|fmax|fmin|fmod|hypot|isfinite|isinf|isnan|ldexp|lgamma|log|"
    r"log2|log10|log1p|max|min|mul24|mulhi|nearbyint|nextafter|popc|pow|rcp|rint|round|rsqrt|saturate|sinh?|sinpi|"
    r"sqrt|tanh?|tanpi|tgamma|trunc)(?:f|l|ll)?(?:_r[nzud])?"
)
ODD = re.compile(r"[;{}()\"\\#\n\r]")  # nothing that an operation takes as a word holds one of these
REGISTER = re.compile(r"[a-z]\w*(?:(?:\.|::)\w+)*")
HOOKS = """
    target.build.cuda tvm_callback_cuda_compile tvm_callback_cuda_postproc tvm_callback_libdevice_path
    ffi.Module.create.cuda ffi.Module.load_from_bytes.cuda runtime.nvshmem.cumodule_init
    tirx.intrinsics.cuda.get_codegen tirx.intrinsics.cuda.header_generator
    tirx.intrinsics.cuda.PTXDTypeFromString tirx.intrinsics.cuda.PTXDTypeToString
""".split()
SETTINGS = re.compile(
    r"TVM_CUDA_|TVM_KERNEL_|NVCC_|CUDA_PATH$|CUDA_HOME$"
)  # what changes how TVM's CUDA source is compiled


def install(guard: Guard) -> None:
    """Replace TVM's build, compile and load functions by watched ones, then remember how everything stands."""
    import tvm_ffi

    build, compile, create = (
        _function(name) for name in ("target.build.cuda", "tvm_callback_cuda_compile", "ffi.Module.create.cuda")
    )
    building = threading.local()
    sources: set[str] = set()  # that TVM's code generator wrote

    def watched_build(module: Any, target: Any) -> Any:
        guard.compare()
        for text in hatches(module):
            guard.report(text)
        building.depth = getattr(building, "depth", 0) + 1
        try:
            return build(module, target)
        finally:
            building.depth -= 1
            guard.compare()

    def watched_create(code: Any, form: Any, functions: Any, texts: Any) -> Any:
        if not getattr(building, "depth", 0):
            guard.report(f"a CUDA module ({form}) that was made outside of TVM's build")
        elif form == "cuda":
            sources.add(_text(code))
        return create(code, form, functions, texts)

    # TVM compiles when a module is first used, so that this may run long after the build
    def watched_compile(code: Any) -> Any:
        if _text(code) not in sources:
            guard.report(f"CUDA source of {len(code)} characters that TVM's code generator did not write")
            return compile(code)
        guard.compare()
        image = compile(code)
        guard.allow(bytes(image))
        return image

    for old, new, name in (
        (build, watched_build, "target.build.cuda"),
        (compile, watched_compile, "tvm_callback_cuda_compile"),
        (create, watched_create, "ffi.Module.create.cuda"),
    ):
        if old is not None:  # TVM's CUDA runtime is not loaded where there is no driver
            tvm_ffi.register_global_func(name, new, override=True)
    first = dict(_state())

    def compare() -> None:
        for name, value in _state():
            # a module of TVM that is imported later is not a change of those that were there
            if not _same(value, first.get(name)) and (name in first or not name.startswith("tvm.")):
                guard.report(f"{name} is not what it was when TVM was loaded")

    guard.compare = compare


def rehearse() -> None:
    """Let TVM and cuda-bindings find CUDA: they start processes for that once (nvcc, ldconfig), a runner must not.

    CUDA itself is not touched, so that the process may fork.
    """
    from tvm.support import nvcc

    try:
        path = nvcc.find_cuda_path()
        version = nvcc.get_cuda_version(path)
    except (RuntimeError, OSError):  # no toolkit: TVM says so itself where it needs one
        return
    os.environ["CUDA_PATH"] = path
    setattr(nvcc, "get_cuda_version", lambda cuda_path=None: version)  # noqa: B010  mypy refuses the assignment


def _function(name: str) -> Any:
    import tvm_ffi

    return tvm_ffi.get_global_func(name, allow_missing=True)


def _same(a: Any, b: Any) -> bool:
    """Identity; for TVM's functions, whose Python objects are made anew each time, that of the object behind."""
    if isinstance(a, str):
        return bool(a == b)
    return bool(a.same_as(b)) if hasattr(type(a), "same_as") and isinstance(b, type(a)) else a is b


def _text(code: Any) -> str:
    return code if isinstance(code, str) else bytes(code).decode(errors="replace")


def _state() -> Iterator[tuple[str, Any]]:
    """Name and value of all that TVM's CUDA code generation asks: hooks, registries, its functions, settings."""
    from tvm.backend.cuda.codegen import header, registry
    from tvm.ir import Op

    for name in HOOKS:
        yield f"the function {name}", _function(name)
    for name, value in list(registry.CODEGEN_REGISTRY.items()):
        yield f"the code generation of {name}", value
    yield "the list of header tags", ",".join(sorted(header.TAGS))
    for name in Op.list_op_names():
        for attribute in ("cuda.FLowerIntrinsic", "default.FLowerIntrinsic"):
            yield f"the lowering {attribute} of {name}", Op.get(name).get_attr(attribute)
    for name, module in list(sys.modules.items()):
        if name.startswith("tvm.backend.cuda.") or name == "tvm.support.nvcc":
            for key, value in list(vars(module).items()):
                if callable(value):
                    yield f"{name}.{key}", value
    yield "the environment", ";".join(sorted(f"{k}={v}" for k, v in os.environ.items() if SETTINGS.match(k)))


def hatches(module: Any) -> list[str]:
    """What in a TVM module puts text into the CUDA source, past the language."""
    import tvm
    import tvm_ffi

    found: list[str] = []
    own = {str(function.attrs.get("global_symbol", "")) for function in module.functions.values()}
    own |= {variable.name_hint for variable in module.functions}
    found += [f"a function named {name!r}" for name in own if name and not IDENTIFIER.fullmatch(name)]
    texts = _own_texts()

    def call(node: Any) -> None:
        found.extend(_odd_call(node, own, texts))

    def marked(node: Any) -> None:
        marks = [(node.attr_key, node.value)] if hasattr(node, "attr_key") else list(node.annotations.items())
        for key, value in marks:
            text = value if isinstance(value, str) else getattr(value, "value", "")
            if "import" in str(key) or (isinstance(text, str) and ODD.search(text)):
                found.append(f"the annotation {str(key)!r}")

    marks = (tvm.tirx.AttrStmt, tvm.tirx.For, *(k for k in [getattr(tvm.tirx, "AllocBuffer", None)] if k))
    for function in module.functions.values():
        tvm_ffi.structural_walk(function, [(tvm.ir.Call, call), (marks, marked)])
    if module.attrs and "external_mods" in module.attrs:
        found.append("call_kernel: a kernel that is not written in TIRx")
    return found


def _own_texts() -> set[tuple[str, str]]:
    """Name and source of the CUDA functions that TVM's own tile operations put into a module."""
    from tvm.backend.cuda.tile_primitive.copy import vec_auto_reg
    from tvm.backend.cuda.tile_primitive.elementwise.vec_emit import cast_vec2

    pairs = cast_vec2._VEC2_CAST_INTRINSICS
    casts = {(cast_vec2._intrinsic_name(*pair), cast_vec2._intrinsic_source(*pair)) for pair in pairs}
    return casts | {("tvm_builtin_pointer_offset", vec_auto_reg._POINTER_OFFSET_SRC)}


def _odd_call(node: Any, own: set[str], texts: set[tuple[str, str]]) -> Iterator[str]:
    import tvm

    if not isinstance(node.op, tvm.ir.Op):
        return
    name = str(node.op.name).removeprefix("tirx.")
    words = [str(a.value) for a in node.args if isinstance(a, tvm.ir.StringImm)]
    first = words[0] if words else ""
    if name in ("call_extern", "call_pure_extern"):
        if not (MATH.fullmatch(first) or (first in own and IDENTIFIER.fullmatch(first))):
            yield f"{name} of {first!r}"
    elif re.fullmatch(r"cuda[._]func_call", name):
        if (first, words[-1] if words else "") not in texts:
            yield f"func_call of {first!r} with a source of its own"
    elif "iket_official_event" in name:
        yield "iket_official_event with a source of its own"
    elif "mov_sreg" in name:
        if not (words and all(REGISTER.fullmatch(word) for word in words)):
            yield f"mov_sreg of {first!r}"
    elif "printf" not in name and any(ODD.search(word) for word in words):
        yield f"a text in a call of {name}"
