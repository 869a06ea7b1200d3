"""Static rules over a submission's syntax tree: fast, explainable messages, never the security boundary."""

import ast
import contextlib
import re
from typing import NamedTuple

from mkb_core.bench import rule_tables as tables
from mkb_core.bench.dsl import DSLS, get_dsl
from mkb_core.bench.rule_literals import Literals
from mkb_core.bench.rule_tables import FORBIDDEN_BUILTINS, FORBIDDEN_NAMES, MAX_LITERAL, STANDARD_MODULES

__all__ = ["FORBIDDEN_BUILTINS", "FORBIDDEN_NAMES", "MAX_LITERAL", "STANDARD_MODULES", "Visitor", "check"]


class Finding(NamedTuple):
    """One broken rule, with its place and what to write instead."""

    rule: str
    line: int
    column: int
    text: str

    def __str__(self) -> str:
        place = f"line {self.line}, column {self.column}: " if self.line else ""
        return f"{place}rule `{self.rule}`: {self.text}; {tables.ADVICE[self.rule]}"


def check(source: str, dsl: str) -> list[Finding]:
    """Findings in order of place; raises SyntaxError (with its line) where the source does not parse."""
    tree = ast.parse(source, "kernel.py")
    visitor = Visitor(dsl)
    visitor.visit(tree)  # a function may use a name that the file defines below it: so twice
    visitor.findings, visitor.encoded = [], 0
    visitor.visit(tree)
    if "solve" not in bound(tree.body) | visitor.scopes[0].keys():
        visitor.add("solve", tree, "there is no function `solve` at the top level")
    return sorted(dict.fromkeys(visitor.findings), key=lambda f: (f.line, f.column))


def bound(body: list[ast.stmt]) -> set[str]:
    """Names that the statements of one scope give a value, other than by import."""
    found, elsewhere, todo = set[str](), set[str](), list[ast.AST](body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.comprehension):
            todo += [node.iter, *node.ifs]
        elif isinstance(node, ast.Global | ast.Nonlocal):
            elsewhere.update(node.names)
        elif not isinstance(node, ast.Lambda):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                found.add(node.id)
            elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
                found.add(node.name)
            todo += ast.iter_child_nodes(node)
    return found - elsewhere


class Visitor(Literals):
    """Resolves names through the file's imports and looks them up in the tables."""

    def __init__(self, dsl: str) -> None:
        self.findings: list[Finding] = []
        # local name -> dotted name that it was imported as, None for a value of the file's own; module scope first
        self.scopes: list[dict[str, str | None]] = [{}]
        self.inner: dict[ast.AST, dict[str, str | None]] = {}  # scopes of the functions
        self.modules: set[str] = set()  # what `import` statements bind: modules as a whole
        self.called: set[ast.expr] = set()  # getattr and its like where they are called by name
        self.followed: set[ast.expr] = set()  # names of modules with an attribute after them
        self.encoded = 0  # characters that look like encoded data
        self.own = set(get_dsl(dsl).modules)
        self.foreign = {m for d in DSLS.values() for m in d.modules} - self.own

    def add(self, rule: str, node: ast.AST, text: str) -> None:
        """Note a finding at this node."""
        self.findings.append(Finding(rule, getattr(node, "lineno", 0), getattr(node, "col_offset", -1) + 1, text))

    def meaning(self, name: str) -> str | None:
        """The dotted name that a name stands for here."""
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), None)

    def bind(self, name: str, meaning: str) -> None:
        """Give a name its meaning in the scope that it belongs to."""
        scope = self.scopes[-1] if name in self.scopes[-1] else self.scopes[0]
        scope[name] = meaning

    def visit_Import(self, node: ast.Import) -> None:  # noqa: D102
        for alias in node.names:
            self.module(alias.name, node)
            root = alias.name.split(".")[0]
            self.modules.add(alias.name if alias.asname else root)
            self.scopes[-1][alias.asname or root] = alias.name if alias.asname else root

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
            self.scopes[-1][alias.asname or alias.name] = f"{module}.{alias.name}"
            if len(self.findings) == before:  # one finding for a module says enough
                self.dotted(f"{module}.{alias.name}", node)
                self.last_name(alias.name, node)

    def module(self, name: str, node: ast.AST) -> None:
        """Judge one imported module."""
        root = name.split(".")[0]
        if root in self.foreign:
            self.add("dsl", node, f"import of `{name}`")
        elif root in tables.LIBRARIES:
            self.add("library", node, f"import of `{name}`")
        elif root == "cuda" and name not in ("cuda.bindings", "cuda.bindings.driver"):
            self.add("raw-cuda", node, f"import of `{name}`")
        elif root not in STANDARD_MODULES | self.own | {"torch"}:
            self.add("import", node, f"import of `{name}`")
        else:
            self.dotted(name, node)

    def dotted(self, name: str, node: ast.AST) -> None:
        """Judge one dotted name after resolution."""
        parts = name.split(".")
        if len(parts) > tables.MAX_PARTS:
            self.add("dynamic", node, f"a name of {len(parts)} parts")
            return
        # a package can be reached through another one's import of it: torch.nn.functional.torch.jit
        for start in (i for i, part in enumerate(parts) if i == 0 or part in tables.ROOTS):
            known = (".".join(parts[start:end]) for end in range(start + 1, len(parts) + 1))
            rule = next((tables.RULE_OF[prefix] for prefix in known if prefix in tables.RULE_OF), None)
            if not rule and parts[start : start + 2] == ["torch", "utils"]:
                rule = None if tables.TORCH_UTILS.issuperset(parts[start + 2 : start + 3]) else "import"
            if rule:
                self.add(rule, node, f"`{name}`")
                return
        module = next((part for part in parts[1:] if part in tables.HIDDEN_MODULES), None)
        if module:
            self.add("import", node, f"`{name}`: the module `{module}` by way of another")
            return
        private = next((p for p in parts[1:] if p.startswith("_") and not p.endswith("__")), None)
        if private:
            self.add("introspection", node, f"`{name}`, whose part `{private}` is private")

    def last_name(self, name: str, node: ast.AST) -> None:
        """Judge a name whatever it is reached through."""
        rules = [rule for rule, names in tables.FORBIDDEN_ATTRIBUTES.items() if name in names]
        for rule in rules or [rule for start, rule in tables.FORBIDDEN_PREFIXES.items() if name.startswith(start)]:
            self.add(rule, node, f"`{name}`")

    def resolve(self, node: ast.expr | None) -> str | None:
        """`torch.cuda.graph` for an attribute chain that starts at an imported name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        meaning = self.meaning(node.id) if isinstance(node, ast.Name) else None
        return ".".join([meaning, *reversed(parts)]) if meaning else None

    def visit_Attribute(self, node: ast.Attribute) -> None:  # noqa: D102
        name = self.resolve(node)
        before = len(self.findings)
        if name:
            self.dotted(name, node)
        if len(self.findings) == before:
            self.last_name(node.attr, node)
        settings = name is not None and name.startswith("torch.backends.")
        own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        if isinstance(node.ctx, ast.Store | ast.Del) and self.resolve(node.value) and not settings:
            self.add("patch", node, f"assignment to `{name}`")
        elif isinstance(node.ctx, ast.Store) and node.attr in tables.TENSOR_METHODS and not own:
            self.add("patch", node, f"assignment to `{node.attr}`, which is a tensor's method")
        if node.attr in tables.LITERAL_ARGUMENT and node not in self.called:
            self.add("raw-cuda", node, f"`{node.attr}` without a call")
        # a chain is judged once, by its longest name
        inner: ast.expr = node.value
        while name and len(self.findings) > before and isinstance(inner, ast.Attribute):
            inner = inner.value
        self.followed.add(inner)
        self.visit(inner)

    def visit_Name(self, node: ast.Name) -> None:  # noqa: D102
        # a name that a function gives a value is never the built-in one; at the top level it still can be
        own = any(node.id in scope for scope in self.scopes[1:]) or node.id in self.scopes[0]
        if node.id in FORBIDDEN_BUILTINS and not own and isinstance(node.ctx, ast.Load):
            self.add("dynamic", node, f"`{node.id}`")
        if node.id in tables.REFLECTION and not own and node not in self.called:
            self.add("dynamic", node, f"`{node.id}` without a call")
        if self.meaning(node.id) in self.modules and node not in self.followed and isinstance(node.ctx, ast.Load):
            self.add("dynamic", node, f"the module `{node.id}` as a value")
        if node.id.startswith("__"):
            self.last_name(node.id, node)

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        """A function: its decorators and defaults belong outside, its body is a scope of its own."""
        arguments = node.args
        named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        if not isinstance(node, ast.Lambda):
            if node.name.startswith("__"):
                self.last_name(node.name, node)
            annotations = [part for part in (*(a.annotation for a in named if a), node.returns) if part]
            for part in (*node.decorator_list, *annotations):
                self.visit(part)
            for annotation in annotations:
                self.annotation(annotation)
        for default in filter(None, (*arguments.defaults, *arguments.kw_defaults)):
            self.visit(default)
        body: list[ast.stmt] = [ast.Expr(node.body)] if isinstance(node, ast.Lambda) else node.body
        own = dict.fromkeys({a.arg for a in named if a} | bound(body))
        self.scopes.append(self.inner.setdefault(node, dict[str, str | None](own)))
        for statement in body:
            self.visit(statement)
        self.scopes.pop()

    def annotation(self, node: ast.expr) -> None:
        """Text in an annotation is code to whoever asks for type hints: judged as if it stood there."""
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                with contextlib.suppress(SyntaxError, ValueError):  # what does not parse is never evaluated
                    code = ast.parse(part.value.strip(), mode="eval").body
                    for inner in ast.walk(code):
                        ast.copy_location(inner, part)
                    self.visit(code)

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = function

    def visit_Call(self, node: ast.Call) -> None:  # noqa: D102
        if isinstance(node.func, ast.Name) and node.func.id in tables.REFLECTION:
            self.called.add(node.func)
            self.reflection(node, node.func.id)
        if isinstance(node.func, ast.Attribute) and node.func.attr in tables.LITERAL_ARGUMENT:
            self.called.add(node.func)
            place, allowed = tables.LITERAL_ARGUMENT[node.func.attr]
            given = node.args[place] if node.args else None
            if not (isinstance(given, ast.Constant) and re.fullmatch(allowed, str(given.value))):
                self.add("raw-cuda", node, f"`{node.func.attr}` of anything but {allowed}")
        if any(keyword.arg == "source_code" for keyword in node.keywords):
            self.add("raw-cuda", node, "`source_code`")
        self.generic_visit(node)

    def reflection(self, node: ast.Call, function: str) -> None:
        """getattr and its like: a plain literal name is judged as if it stood there."""
        self.followed |= set(node.args[:1])
        name = node.args[1] if len(node.args) > 1 else None
        if not (isinstance(name, ast.Constant) and isinstance(name.value, str)):
            self.add("dynamic", node, f"`{function}` with a computed name")
            return
        base = self.resolve(node.args[0])
        if base:
            self.dotted(f"{base}.{name.value}", node)
        if function in ("setattr", "delattr") and (base or name.value in tables.TENSOR_METHODS):
            self.add("patch", node, f"`{function}` of `{name.value}`")
        self.last_name(name.value, node)

    def assignment(self, node: ast.Assign | ast.AnnAssign | ast.NamedExpr) -> None:
        """A name that is given an imported thing stands for it from here on."""
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names, name = [t.id for t in targets if isinstance(t, ast.Name)], self.resolve(node.value)
        if name and len(names) == len(targets):
            for local in names:
                self.bind(local, name)
            if isinstance(node.value, ast.Name):
                self.followed.add(node.value)
        if isinstance(node, ast.AnnAssign):
            self.annotation(node.annotation)
        self.generic_visit(node)

    visit_Assign = visit_AnnAssign = visit_NamedExpr = assignment

    def visit_MatchClass(self, node: ast.MatchClass) -> None:  # noqa: D102
        for name in node.kwd_attrs:
            before = len(self.findings)
            self.last_name(name, node)
            if name.startswith("_") and len(self.findings) == before:
                self.add("introspection", node, f"`{name}` in a pattern")
        self.generic_visit(node)
