"""Static rules over a submission's syntax tree: fast, explainable messages, never the security boundary."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from mkb_core.bench.dsl import DSLS, get_dsl

# Ordinary Python that a kernel file needs. Files, processes, threads and foreign code are not in it.
STANDARD_MODULES = frozenset(
    "__future__ abc collections contextlib copy dataclasses enum functools itertools math numbers "
    "operator re string types typing typing_extensions warnings".split()
)
FORBIDDEN_BUILTINS = frozenset("exec eval open __import__ globals locals vars breakpoint memoryview".split())
REFLECTION = frozenset({"getattr", "setattr", "delattr", "hasattr"})
FORBIDDEN_NAMES = {
    "compiler": (
        "torch.compile torch.jit torch._dynamo torch._inductor torch.fx torch.export torch.utils.cpp_extension "
        "torch.cuda._compile_kernel torch.cuda.jiterator torch.library torch.ops torch.classes triton "
        "torch._C torch._native tvm.support.nvcc tvm.contrib tvm.relax tvm_ffi.cpp tvm.runtime.load_module "
        "tvm_ffi.load_module cutlass.cute.runtime.load_module cuda.bindings.nvrtc"
    ),
    "graph": (
        "torch.cuda.CUDAGraph torch.cuda.graph torch.cuda.graphs torch.cuda.make_graphed_callables "
        "torch.cuda.graph_pool_handle torch.cuda.is_current_stream_capturing"
    ),
    "random": (
        "torch.manual_seed torch.seed torch.initial_seed torch.random torch.get_rng_state torch.set_rng_state "
        "torch.cuda.manual_seed torch.cuda.get_rng_state torch.Generator torch.default_generator"
    ),
    "dynamic": "operator.attrgetter operator.methodcaller types.FunctionType types.CodeType types.MethodType",
    "files": "torch.save torch.load torch.from_file torch.hub torch.multiprocessing torch.distributed",
    "raw-cuda": (
        "torch.cuda.cudart tvm.register_global_func tvm.get_global_func tvm_ffi.register_global_func "
        "tvm_ffi.get_global_func tvm.script.from_source tvm.backend tvm.ir.register_op_attr "
        "tvm.tirx.register_intrin_lowering cuda.bindings.runtime cutlass._mlir"
    ),
}
# methods and functions known by their last name, whatever object they are reached through
FORBIDDEN_ATTRIBUTES = {
    "raw-cuda": frozenset(
        "call_extern call_pure_extern call_kernel call_cpacked cuda_func_call func_call source_code "
        "call_llvm_intrin iket_official_event pragma_import_c inline_asm inline_ptx import_module "
        "compile_cuda load_inline register_global_func get_global_func cuModuleLoadData cuLaunchKernel "
        "cuLaunchKernelEx nvrtcCompileProgram cuLibraryLoadData".split()
    ),
    # modules that other modules hold as attributes
    "import": frozenset(
        "os sys ctypes subprocess builtins bltns importlib gc inspect threading socket shutil".split()
    ),
    "files": frozenset("from_file UntypedStorage TypedStorage frombuffer serialization package".split()),
    "dynamic": frozenset("attrgetter methodcaller get_type_hints ForwardRef".split()),
    "modes": frozenset(
        "TorchFunctionMode TorchDispatchMode overrides _python_dispatch __torch_function__".split()
    ),
    "introspection": frozenset(
        "__globals__ __code__ __closure__ __subclasses__ __bases__ __mro__ __builtins__ __loader__ "
        "__spec__ __file__ __cached__ __annotations__ __import__ __dict__ __getattribute__ "
        "__reduce__ __reduce_ex__ f_globals f_locals f_back gi_frame cr_frame tb_frame _getframe".split()
    ),
}
ALLOWED_PACKED = frozenset({"runtime.cuTensorMapEncodeTiled"})  # the one host function that TMA needs
MAX_LITERAL = 20_000
# each forbidden dotted name with its rule
RULE_OF = {name: rule for rule, names in FORBIDDEN_NAMES.items() for name in names.split()}
MAX_PARTS = 12  # of a dotted name; none of an honest kernel is longer
ADVICE = {
    "import": "use torch, the variant's DSL, or one of: " + ", ".join(sorted(STANDARD_MODULES - {"__future__"})),
    "dsl": "this variant is written in its own DSL alone",
    "compiler": "write the computation in the DSL, or in eager PyTorch",
    "graph": "launch the kernels in every call; CUDA graphs are not allowed",
    "random": "a kernel is a function of its inputs",
    "files": "a kernel reads and writes nothing but tensors",
    "raw-cuda": "express it in the DSL itself",
    "introspection": "name what you need directly",
    "dynamic": "write the name out",
    "modes": "write the computation in solve",
    "patch": "keep your own state in your own names",
    "literal": "compute tables at import instead",
    "solve": "define `def solve(*inputs)` at the top level of kernel.py",
}


ROOTS = frozenset({"torch", "triton", "operator", "types", *(m for d in DSLS.values() for m in d.modules)})


class Finding(NamedTuple):
    """One broken rule, with its place and what to write instead."""

    rule: str
    line: int
    column: int
    text: str

    def __str__(self) -> str:
        place = f"line {self.line}, column {self.column}: " if self.line else ""
        return f"{place}rule `{self.rule}`: {self.text}; {ADVICE[self.rule]}"


def check(source: str, dsl: str) -> list[Finding]:
    """Findings in order of place; raises SyntaxError (with its line) where the source does not parse."""
    tree = ast.parse(source, "kernel.py")
    visitor = Visitor(dsl)
    visitor.visit(tree)
    names = {n.name for n in tree.body if isinstance(n, ast.FunctionDef)} | set(_assigned(tree)) | visitor.imported
    if "solve" not in names:
        visitor.findings.append(Finding("solve", 0, 0, "there is no function `solve` at the top level"))
    return sorted(visitor.findings, key=lambda f: (f.line, f.column))


def _assigned(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        yield from (t.id for t in targets if isinstance(t, ast.Name))


class Visitor(ast.NodeVisitor):
    """Resolves names through the file's imports and looks them up in the tables above."""

    def __init__(self, dsl: str) -> None:
        self.findings: list[Finding] = []
        self.names: dict[str, str] = {}  # local name -> dotted name that it was imported as
        self.imported: set[str] = set()
        self.called: set[ast.expr] = set()  # getattr and its like where they are called by name
        self.own = set(get_dsl(dsl).modules)
        self.foreign = {m for d in DSLS.values() for m in d.modules} - self.own

    def add(self, rule: str, node: ast.AST, text: str) -> None:
        """Note a finding at this node."""
        self.findings.append(Finding(rule, getattr(node, "lineno", 0), getattr(node, "col_offset", 0) + 1, text))

    def visit_Import(self, node: ast.Import) -> None:  # noqa: D102
        for alias in node.names:
            self.module(alias.name, node)
            self.names[alias.asname or alias.name.split(".")[0]] = (
                alias.name if alias.asname else alias.name.split(".")[0]
            )

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:  # noqa: D102
        module = node.module or ""
        if node.level:
            self.add("import", node, "relative import")
            return
        before = len(self.findings)
        self.module(module, node)
        for alias in node.names:
            if alias.name == "*":
                self.add("dynamic", node, f"star import from `{module}`")
            local = alias.asname or alias.name
            self.names[local] = f"{module}.{alias.name}"
            self.imported.add(local)
            if len(self.findings) == before:  # one finding for a module says enough
                self.dotted(f"{module}.{alias.name}", node)
                self.last_name(alias.name, node)

    def module(self, name: str, node: ast.AST) -> None:
        """Judge one imported module."""
        root = name.split(".")[0]
        if root in self.foreign:
            self.add("dsl", node, f"import of `{name}`")
        elif root == "cuda" and name not in ("cuda.bindings", "cuda.bindings.driver"):
            self.add("raw-cuda", node, f"import of `{name}`")
        elif root not in STANDARD_MODULES | self.own | {"torch"}:
            self.add("import", node, f"import of `{name}`")
        else:
            self.dotted(name, node)

    def dotted(self, name: str, node: ast.AST) -> None:
        """Judge one dotted name after resolution."""
        parts = name.split(".")
        if len(parts) > MAX_PARTS:
            self.add("dynamic", node, f"a name of {len(parts)} parts")
            return
        # a package can be reached through another one's import of it: torch.nn.functional.torch.jit
        starts = [i for i, part in enumerate(parts) if i == 0 or part in ROOTS]
        for start in starts:
            for end in range(start + 1, len(parts) + 1):
                rule = RULE_OF.get(".".join(parts[start:end]))
                if rule:
                    self.add(rule, node, f"`{name}`")
                    return
        private = next((p for p in parts[1:] if p.startswith("_") and not p.endswith("__")), None)
        if private:
            self.add("introspection", node, f"`{name}`, whose part `{private}` is private")

    def last_name(self, name: str, node: ast.AST) -> None:
        """Judge a name whatever it is reached through."""
        for rule, names in FORBIDDEN_ATTRIBUTES.items():
            if name in names:
                self.add(rule, node, f"`{name}`")

    def resolve(self, node: ast.expr) -> str | None:
        """`torch.cuda.graph` for an attribute chain that starts at an imported name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if isinstance(node, ast.Name) and node.id in self.names:
            return ".".join([self.names[node.id], *reversed(parts)])
        return None

    def visit_Attribute(self, node: ast.Attribute) -> None:  # noqa: D102
        name = self.resolve(node)
        before = len(self.findings)
        if name:
            self.dotted(name, node)
        if len(self.findings) == before:
            self.last_name(node.attr, node)
        settings = name is not None and name.startswith("torch.backends.")
        if isinstance(node.ctx, ast.Store | ast.Del) and self.resolve(node.value) and not settings:
            self.add("patch", node, f"assignment to `{name}`")
        if node.attr == "call_packed" and node not in self.called:
            self.add("raw-cuda", node, "`call_packed` without a call")
        # a chain is judged once, by its longest name
        inner: ast.expr = node.value
        while name and len(self.findings) > before and isinstance(inner, ast.Attribute):
            inner = inner.value
        self.visit(inner)

    def visit_Name(self, node: ast.Name) -> None:  # noqa: D102
        if node.id in FORBIDDEN_BUILTINS and node.id not in self.names and isinstance(node.ctx, ast.Load):
            self.add("dynamic", node, f"`{node.id}`")
        if node.id in REFLECTION and node not in self.called:
            self.add("dynamic", node, f"`{node.id}` without a call")
        self.last_name(node.id, node)

    def visit_Call(self, node: ast.Call) -> None:  # noqa: D102
        if isinstance(node.func, ast.Name) and node.func.id in REFLECTION:
            self.called.add(node.func)
            self.reflection(node, node.func.id)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "call_packed":
            self.called.add(node.func)
            target = node.args[0] if node.args else None
            if not (isinstance(target, ast.Constant) and target.value in ALLOWED_PACKED):
                self.add("raw-cuda", node, "`call_packed` of another function than " + ", ".join(ALLOWED_PACKED))
        for keyword in node.keywords:
            if keyword.arg == "source_code":
                self.add("raw-cuda", node, "`source_code`")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:  # noqa: D102
        self.alias(node.targets, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:  # noqa: D102
        self.alias([node.target], node.value)
        self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:  # noqa: D102
        self.alias([node.target], node.value)
        self.generic_visit(node)

    def alias(self, targets: list[ast.expr], value: ast.expr | None) -> None:
        """A name that is given an imported thing stands for it from here on."""
        name = self.resolve(value) if value is not None else None
        if name:
            self.names |= {target.id: name for target in targets if isinstance(target, ast.Name)}

    def visit_MatchClass(self, node: ast.MatchClass) -> None:  # noqa: D102
        for name in node.kwd_attrs:
            before = len(self.findings)
            self.last_name(name, node)
            if name.startswith("_") and len(self.findings) == before:
                self.add("introspection", node, f"`{name}` in a pattern")
        self.generic_visit(node)

    def reflection(self, node: ast.Call, function: str) -> None:
        """getattr and its like: a plain literal name is judged as if it stood there."""
        name = node.args[1] if len(node.args) > 1 else None
        if not (isinstance(name, ast.Constant) and isinstance(name.value, str)):
            self.add("dynamic", node, f"`{function}` with a computed name")
            return
        base = self.resolve(node.args[0])
        if base:
            self.dotted(f"{base}.{name.value}", node)
            if function in ("setattr", "delattr"):
                self.add("patch", node, f"`{function}` on `{base}`")
        self.last_name(name.value, node)

    def visit_Constant(self, node: ast.Constant) -> None:  # noqa: D102
        if isinstance(node.value, str | bytes):
            if node.value in ("source_code", "pragma_import_c"):
                self.add("raw-cuda", node, f"`{node.value!r}`")
            elif len(node.value) > MAX_LITERAL:
                self.add("literal", node, f"a literal of {len(node.value)} characters")
            elif isinstance(node.value, str) and node.value.startswith("pragma_import"):
                self.add("raw-cuda", node, f"`{node.value[:40]}`")
