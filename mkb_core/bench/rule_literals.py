"""Static rules over the literals of a submission: code, binaries and tables that hide in text and numbers."""

import ast
import re

from mkb_core.bench import rule_tables as tables
from mkb_core.bench.rule_tables import MAX_LITERAL


class Literals(ast.NodeVisitor):
    """The part of the visitor that looks at constants; `add` and `last_name` are the whole visitor's."""

    encoded = 0  # characters of encoded data so far

    def add(self, rule: str, node: ast.AST, text: str) -> None:
        """Note a finding at this node."""
        raise NotImplementedError

    def last_name(self, name: str, node: ast.AST) -> None:
        """Judge a name whatever it is reached through."""
        raise NotImplementedError

    def visit_Constant(self, node: ast.Constant) -> None:  # noqa: D102
        value, before = node.value, self.encoded
        if isinstance(value, int) and value.bit_length() > 8 * tables.MAX_ENCODED:
            self.add("literal", node, f"a number of {value.bit_length()} bits")
        if not isinstance(value, str | bytes):
            return
        text = value if isinstance(value, str) else value.decode("latin-1")
        dense = re.fullmatch(tables.ENCODED, text) and len(set(text)) > 8
        if dense or (isinstance(value, bytes) and not text.isascii()):
            self.encoded += len(text)
        if len(text) > MAX_LITERAL:
            self.add("literal", node, f"a literal of {len(text)} characters")
        elif before <= tables.MAX_ENCODED < self.encoded:
            self.add("literal", node, f"more than {tables.MAX_ENCODED} characters of encoded data")
        elif text in tables.FORBIDDEN_TEXTS or text.startswith("pragma_import") or "--link-libraries" in text:
            self.add("raw-cuda", node, f"`{text[:40]!r}`")
        elif re.search(tables.FOREIGN_CODE, text, re.S):
            self.add("raw-cuda", node, "CUDA C or PTX as text")
        elif text.startswith("__"):
            self.last_name(text, node)

    def numbers(self, node: ast.List | ast.Tuple) -> None:
        """A list of very many literals is data, not code."""
        if sum(isinstance(item, ast.Constant) for item in node.elts) > tables.MAX_NUMBERS:
            self.add("literal", node, f"a list of more than {tables.MAX_NUMBERS} literals")
        self.generic_visit(node)

    visit_List = visit_Tuple = numbers

    def visit_Dict(self, node: ast.Dict) -> None:  # noqa: D102
        for key, value in zip(node.keys, node.values, strict=True):
            symbol = isinstance(key, ast.Constant) and key.value == "global_symbol"
            if symbol and not (isinstance(value, ast.Constant) and str(value.value).isidentifier()):
                self.add("raw-cuda", node, "a `global_symbol` that is not a plain name")
        self.generic_visit(node)
