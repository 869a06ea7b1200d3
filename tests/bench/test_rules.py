"""The static rules: what they refuse, with place and advice, and what they must let through."""

import pytest

from mkb_core.bench import rule_tables, rules
from mkb_core.bench.problems import problems
from mkb_core.bench.verify import static_fault

SOLVE = "\ndef solve(x):\n    return x\n"

REFUSED = [
    ("import numpy", "import"),
    ("import os", "import"),
    ("from subprocess import run", "import"),
    ("import triton", "import"),
    ("from . import helper", "import"),
    ("import tvm", "dsl"),
    ("from tvm.script import tirx as T", "dsl"),
    ("import torch\nf = torch.compile(abs)", "compiler"),
    ("from torch import compile as c", "compiler"),
    ("import torch as t\nf = t.jit.script", "compiler"),
    ("import torch._inductor", "compiler"),
    ("from torch.utils import cpp_extension", "compiler"),
    ("import torch\ng = torch.cuda.CUDAGraph()", "graph"),
    ("from torch.cuda import graph", "graph"),
    ("import torch\ntorch.manual_seed(0)", "random"),
    ("import torch\ntorch.load('x')", "files"),
    ("open('/etc/passwd')", "dynamic"),
    ("exec('x = 1')", "dynamic"),
    ("import torch\nf = getattr(torch, 'comp' + 'ile')", "dynamic"),
    ("import torch\nf = getattr(torch, 'compile')", "compiler"),
    ("import torch, functools\nf = functools.reduce(getattr, ['jit'], torch)", "dynamic"),
    ("import operator\nf = operator.attrgetter('a.b')", "dynamic"),
    ("from types import FunctionType", "dynamic"),
    ("from torch import *", "dynamic"),
    ("import torch\nt = torch\nt.compile(abs)", "compiler"),
    ("import torch\nf = torch.nn.functional.torch.jit.trace", "compiler"),
    ("import collections\nm = collections._sys.modules", "introspection"),
    ("import enum\nm = enum.bltns", "import"),
    ("g = getattr", "dynamic"),
    ("f = open", "dynamic"),
    ("where = __file__", "introspection"),
    ("match 1:\n    case object(__globals__=g):\n        pass", "introspection"),
    ("import torch\ns = torch.UntypedStorage.from_file('/proc/self/fd/3', True, 1)", "files"),
    ("from torch.overrides import TorchFunctionMode", "modes"),
    ("import torch\ntorch.os.system('id')", "import"),
    ("import warnings\nm = warnings.sys.modules", "import"),
    ("import torch\ntorch.allclose = lambda *a: True", "patch"),
    ("import torch\nsetattr(torch, 'equal', 1)", "patch"),
    ("f = (lambda: 0).__globals__", "introspection"),
    ("from cuda.bindings import nvrtc", "compiler"),
    ("import cuda.bindings.runtime", "raw-cuda"),
    ("from cutlass._mlir.dialects import llvm", "raw-cuda"),
    ("import cutlass\ncutlass.x.inline_asm('')", "raw-cuda"),
    ("x = '" + "A" * 30_000 + "'", "literal"),
    ("from quack.rmsnorm import rmsnorm", "library"),
    ("import flash_attn.cute", "library"),
    ("from torch.utils.data import DataLoader", "process"),
    ("import torch.multiprocessing", "process"),
    ("from torch.utils import collect_env", "process"),
    ("from torch.utils import model_zoo", "import"),
    ("from torch.utils.benchmark import Timer", "dynamic"),
    ("import string\nf = string.Formatter", "dynamic"),
    ("import functools\n@functools.singledispatch\ndef f(x: 'eval(1)'): pass", "dynamic"),
    ("def f(x: 'eval(1)'): pass", "dynamic"),
    ("class C:\n    x: 'list[eval(1)]' = 0", "dynamic"),
    ("import torch\nd = torch.cuda.memory.pickle.loads", "import"),
    ("import torch\nf = torch.storage.io.FileIO", "import"),
    ("from torch.cuda.memory import pickle", "import"),
    ("import torch\ndef f(m): pass\nf(torch)", "dynamic"),
    ("import torch\nx = [torch, 1]", "dynamic"),
    ("def f():\n    return t.jit\n\nimport torch\nt = torch", "compiler"),
    ("def f(exec): pass\n\nexec('1')", "dynamic"),
    ("import torch\nx = [1 for torch in ()], torch.compile", "compiler"),
    ("class A:\n    def __reduce_ex__(self, p): pass", "introspection"),
    ("class A:\n    def __torch_function__(self): pass", "modes"),
    ("A = type('A', (), {'__torch_function__': 1})", "modes"),
    ("def f(y):\n    y.detach = 1", "patch"),
    ("def f(y):\n    setattr(y, 'data_ptr', 1)", "patch"),
    ("import cutlass.cute as cute\nf = cute.ffi(name='f')", "raw-cuda"),
    ("import cutlass.cute as cute\nf = cute.BitCode('f.bc')", "raw-cuda"),
    ("options = '--enable-tvm-ffi --link-libraries=f.bc'", "raw-cuda"),
    ("text = 'extern __global__ void f(int* x) { x[0] = 1; }'", "raw-cuda"),
    ("text = '.version 8.0 .visible .entry f(.param .u64 p) { ret; }'", "raw-cuda"),
    ("from cuda.bindings import driver\ndriver.cuLibraryLoadFromFile(b'f')", "raw-cuda"),
    ("from cuda.bindings import driver\ndriver.cuGraphLaunch(1, 2)", "graph"),
    ("x = '" + "0123456789abcdef" * 40 + "'", "literal"),
    ("x = [" + "'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123+/', " * 12 + "]", "literal"),
    ("x = b'" + r"\x7f\x80" * 300 + "'", "literal"),
    ("x = [" + "7, " * 2000 + "]", "literal"),
    ("x = 0x" + "7f" * 1000, "literal"),
]


@pytest.mark.parametrize(("source", "rule"), REFUSED, ids=[s[:30] for s, _ in REFUSED])
def test_refused_in_cutedsl(source, rule):
    found = rules.check(source + SOLVE, "cutedsl")
    assert {f.rule for f in found} == {rule}, found


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("from tvm.script import tirx as T\nT.call_extern('float32', 'asm')", "raw-cuda"),
        ("from tvm.script import tirx as T\nT.cuda.func_call('f', source_code='x')", "raw-cuda"),
        ("from tvm.script import tirx as T\nT.call_packed('any.global')", "raw-cuda"),
        ("from tvm.script import tirx as T\nT.attr(0, 'pragma_import_c', 'x')", "raw-cuda"),
        ("import tvm_ffi\ntvm_ffi.cpp.load_inline('a')", "compiler"),
        ("import tvm\ntvm.register_global_func('f')", "raw-cuda"),
        ("import cutlass", "dsl"),
        ("from tvm import topi", "library"),
        ("import tirx_kernels", "library"),
        ("from tvm.script import tirx as T\nT.call_intrin('float32', 'tirx.cuda.func_call', 1)", "raw-cuda"),
        ("from tvm.script import tirx as T\nT.cuda.iket.official_event(0, 'x')", "raw-cuda"),
        ("from tvm.script import tirx as T\nT.cuda.mov_sreg(32, 'clock; exit')", "raw-cuda"),
        ("from tvm.script import tirx as T\nT.func_attr({'global_symbol': 'f() {} void g'})", "raw-cuda"),
        ("from tvm.script import tirx as T\nf = T.call_packed", "raw-cuda"),
        ("import tvm\ntvm.ir.Op.get('tirx.call_extern')", "raw-cuda"),
        ("from tvm.tirx.op import register_intrin_lowering", "raw-cuda"),
        ("from tvm.backend.cuda.codegen.registry import CODEGEN_REGISTRY", "raw-cuda"),
        ("import tvm\ntvm.ir.register_op_attr('tirx.rsqrt', 'a', 1)", "raw-cuda"),
    ],
)
def test_refused_in_tirx(source, rule):
    assert {f.rule for f in rules.check(source + SOLVE, "tirx")} == {rule}


@pytest.mark.parametrize(
    "source",
    [
        "import torch, math, functools, operator",
        "try:\n    pass\nexcept ValueError:\n    pass",
        "# torch.compile is not used here\ntext = 'exec torch.compile'",
        "import torch\nx = getattr(torch, 'float32')",
        "num_stages = 4  # a tuning parameter",
        "cache = {}\n\ndef f(x):\n    cache[x.shape] = 1",
        "class K:\n    def compile(self):\n        self.graph = 1",
        "import cutlass.cute as cute\nf = cute.compile",
        "import re\np = re.compile('a')",
        "def norm(input, weight):\n    return input",
        "import torch\ntorch.backends.cuda.matmul.allow_tf32 = True",
        "import torch\nd = torch.device('cuda', 0)",
        "from cuda.bindings import driver\ns = driver.CUstream(0)",
        "from torch.utils import dlpack",
        "from torch.utils.checkpoint import checkpoint",
        "def f(gc, sys, **overrides):\n    vars = {**overrides}\n    return vars[gc], sys",
        "import copy\n\ndef f(x):\n    copy = x.kept\n    copy.target = 1",
        "import torch\n\ndef f():\n    p = torch.bfloat16\n    return p\n\ndef g(x):\n    p = x\n    p.n = 1",
        "import functools\n\n@functools.singledispatch\ndef f(x: int): pass",
        "def f(x: 'torch.Tensor') -> 'torch.Tensor': pass",
        "class K:\n    def __init__(self, size):\n        self.size = self.view = size",
        "import torch as th\nt = th\nx = t.float32",
        "table = [" + "7, " * 1000 + "]",
        "print('=' * 40, '------------------------------------------------------------')",
        "text = 'writes what __global__ functions of CUDA C would write'",
        "name = 'a_very_long_name_of_a_configuration_of_a_kernel_with_128_threads_and_4_stages'",
    ],
)
def test_ordinary_python_passes(source):
    assert rules.check(source + SOLVE, "cutedsl") == []


def test_tma_descriptor_is_the_one_packed_call_allowed():
    source = "from tvm.script import tirx as T\nT.call_packed('runtime.cuTensorMapEncodeTiled', 1)"
    assert rules.check(source + SOLVE, "tirx") == []


@pytest.mark.parametrize(
    "source",
    [
        "import torch\nif torch.cuda.is_available():\n    def solve(x): return x\nelse:\n    solve = None",
        "solve, other = (lambda x: x), 1",
        "for solve in (abs,): pass",
    ],
)
def test_solve_is_found_wherever_the_top_level_defines_it(source):
    assert rules.check(source, "tirx") == []


def test_a_plain_register_may_be_read():
    source = "from tvm.script import tirx as T\nT.cuda.mov_sreg(32, '%smid')"
    assert rules.check(source + SOLVE, "tirx") == []


def test_every_rule_says_what_to_write_instead():
    used = {rule for _, rule in REFUSED} | set(rules.FORBIDDEN_NAMES) | set(rule_tables.FORBIDDEN_ATTRIBUTES)
    assert used | set(rule_tables.FORBIDDEN_PREFIXES.values()) <= set(rule_tables.ADVICE)


def test_a_finding_names_line_column_rule_and_what_to_write_instead():
    text = str(rules.check("import math\nimport numpy" + SOLVE, "tirx")[0])
    assert text.startswith("line 2, column 1: rule `import`: import of `numpy`; use torch")


def test_a_long_source_is_judged_at_once():
    import time

    source = "import torch\n" + ("torch" + ".a" * 190 + "\n") * 500 + SOLVE
    started = time.process_time()
    rules.check(source, "tirx")
    assert time.process_time() - started < 10
    assert {f.rule for f in rules.check(source, "tirx")} == {"dynamic"}


def test_syntax_error_and_missing_solve_are_build_faults():
    broken = static_fault("tirx", b"def solve(x:\n  return")
    assert broken is not None
    assert broken["status"] == "build"
    assert "line 1" in broken["message"]
    missing = static_fault("tirx", b"def sovle(x): return x")
    assert missing is not None
    assert (missing["status"], "no function `solve`" in missing["message"]) == ("build", True)
    assert static_fault("tirx", b"\xff\xfe")["status"] == "build"  # type: ignore[index]
    assert static_fault("tirx", b"\xef\xbb\xbf\r\ndef solve(x):\r\n    return x\r\n") is None
    # the rules must read the text that Python runs
    for cookie in (b"utf-7", b"unicode_escape", b"latin-1", b"no-such"):
        hidden = b"# coding: " + cookie + b"\ndef solve(x): return x"
        assert static_fault("tirx", hidden)["status"] == "build"  # type: ignore[index]
    assert static_fault("tirx", b"x" * (1 << 20) + b"y")["status"] == "build"  # type: ignore[index]


def test_every_solution_keeps_the_rules():
    checked = 0
    for problem in problems().values():
        for path in sorted(problem.folder.glob("solutions/*.py")):
            assert rules.check(path.read_text(), path.stem) == [], path
            checked += 1
    assert checked >= 4
