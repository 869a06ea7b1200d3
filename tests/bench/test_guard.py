"""The guard finds every known way past the DSL and nothing in honest kernels; one process a DSL does it."""

import json
import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNEL = """
@T.prim_func
def main(a_ptr: T.handle):
    A = T.match_buffer(a_ptr, (32,), "float32", align=16)
    {attr}
    T.device_entry()
    block = T.cta_id([1])
    t = T.thread_id([32])
    {body}
"""
UNARY = """
    exp exp2 exp10 log log2 log10 log1p sqrt rsqrt sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh erf
    fabs floor ceil round trunc nearbyint
""".split()
MATH = [
    "\n    ".join(f"A[t] = T.{name}(A[t])" for name in UNARY),
    "A[t] = T.pow(A[t], A[t]) + T.fmod(A[t], A[t]) + T.atan2(A[t], A[t]) + T.hypot(A[t], A[t])",
    'A[t] = T.cast(T.popcount(T.cast(A[t], "uint32")), "float32")',
    'A[t] = T.cast(T.exp(T.cast(A[t], "bfloat16")) * T.tanh(T.cast(A[t], "bfloat16")), "float32")\n'
    '    A[t] = T.cast(T.exp(T.cast(A[t], "float16")) * T.sqrt(T.cast(A[t], "float16")), "float32")',
    'A[t] = T.max(T.cuda.warp_sum(A[t], 32), T.cast(T.cuda.mov_sreg(32, "laneid"), "float32"))\n'
    '    T.cuda.printf("a text; of (any) kind {}\\n")',
]
# a body of the kernel, or code for "hook:", and what the finding must say
HATCHES = {
    "func_call": ('T.cuda.func_call("f", source_code="__device__ void f() {}")', "func_call of 'f'"),
    "func_call as intrinsic": (
        'T.evaluate(T.call_intrin("void", "tirx.cuda.func_call", "f", "__device__ void f() {}"))',
        "func_call of 'f'",
    ),
    "func_call by TVM's name": (
        'T.cuda.func_call("tvm_builtin_pointer_offset", source_code="__device__ void f() {}")',
        "func_call of 'tvm_builtin_pointer_offset'",
    ),
    "call_extern": ('T.evaluate(T.call_extern("float32", "0; asm(\\"trap;\\")"))', "call_extern of"),
    "call_extern by an unknown name": ('T.evaluate(T.call_extern("float32", "f"))', "call_extern of 'f'"),
    "call_pure_extern": ('A[t] = T.call_pure_extern("float32", "[]{return 1.f;}")', "call_pure_extern of"),
    "pragma": ('with T.attr(t, "pragma_import_c", "text"):\n        A[t] = T.float32(0)', "'pragma_import_c'"),
    "loop annotation": (
        'for i in T.serial(2, annotations={"pragma_import_c": "text"}):\n        A[i] = T.float32(0)',
        "'pragma_import_c'",
    ),
    "iket": (
        'T.evaluate(T.call_intrin("uint32", "tirx.cuda.iket_official_event", 0, "text"))',
        "iket_official_event",
    ),
    "mov_sreg": ('A[t] = T.cast(T.cuda.mov_sreg(32, "laneid; trap; //"), "float32")', "mov_sreg of"),
    "global_symbol": ('attr:T.func_attr({"global_symbol": "f() {} void g"})', "a function named"),
    "call_kernel": ("hook:call_kernel()", "CUDA module (ptx) that was made outside"),
    "module": (
        'hook:get("ffi.Module.create.cuda")(b"text", "ptx", {}, {})',
        "CUDA module (ptx) that was made outside",
    ),
    "postproc": ("hook:put('tvm_callback_cuda_postproc', identity)", "tvm_callback_cuda_postproc is not"),
    "compile": ("hook:put('tvm_callback_cuda_compile', identity)", "tvm_callback_cuda_compile is not"),
    "compile, in between": (
        "hook:put('tvm_callback_cuda_compile', identity), build(), "
        "put('tvm_callback_cuda_compile', KEPT['tvm_callback_cuda_compile'])",
        "tvm_callback_cuda_compile is not",
    ),
    "compile, called": ("hook:KEPT['tvm_callback_cuda_compile']('')", "source of 0 characters that TVM's"),
    "header": ("hook:put('tirx.intrinsics.cuda.header_generator', identity)", "header_generator is not"),
    "get_codegen": ("hook:put('tirx.intrinsics.cuda.get_codegen', identity)", "get_codegen is not"),
    "build": ("hook:put('target.build.cuda', KEPT['ffi.Module.create.cuda'])", "target.build.cuda is not"),
    "create": ("hook:put('ffi.Module.create.cuda', identity)", "ffi.Module.create.cuda is not"),
    "registry": ("hook:registry.register_codegen('cuda_evil')(identity)", "the code generation of tirx.cuda.evil"),
    "registry, replaced": (
        "hook:registry.register_codegen('cuda_warp_reduce')(identity)",
        "the code generation of tirx.cuda.warp_reduce",
    ),
    "device_intrinsic": (
        "hook:schema.device_intrinsic('cuda_evil', body='trap')",
        "the code generation of tirx.cuda.evil",
    ),
    "tag": ("hook:header.TAGS.add('evil')", "the list of header tags"),
    "lowering": (
        "hook:tvm.tirx.op.register_intrin_lowering('tirx.exp', target='cuda', f=identity, level=99)",
        "the lowering cuda.FLowerIntrinsic of tirx.exp",
    ),
    "lowering of another": (
        "hook:tvm.ir.register_op_attr('tirx.acosh', 'cuda.FLowerIntrinsic', identity, 99)",
        "the lowering cuda.FLowerIntrinsic of tirx.acosh",
    ),
    "patch": ("hook:setattr(nvcc, 'compile_cuda', identity)", "tvm.support.nvcc.compile_cuda is not"),
    "environment": ("hook:os.environ.update(TVM_CUDA_NVRTC_EXTRA_OPTS='-DX=1')", "the environment is not"),
}
CUTE = """
import cutlass, cutlass.cute as cute
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm

@cute.kernel
def evil_kernel(g: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    {body}
    g[t] = g[t]

@cute.jit
def evil(g: cute.Tensor):
    evil_kernel(g).launch(grid=[1, 1, 1], block=[32, 1, 1])

f = cute.compile(evil, cute.runtime.make_fake_compact_tensor(cutlass.Float32, (32,)), options="{options}")
"""
ASM = 'llvm.inline_asm(None, [], "nanosleep.u32 1;", "", has_side_effects=True)'
CUTE_CASES = {
    "plain": ("", "", None),
    "the DSL's own": ("g[t] = cute.math.exp(g[t], fastmath=True) + cute.arch.rcp_approx(g[t])", "", None),
    "the DSL's own, of many kinds": (
        "cute.arch.griddepcontrol_wait(); cute.arch.griddepcontrol_launch_dependents(); "
        "g[t] = cute.arch.exp2(g[t]) + cutlass.Float32(cute.arch.lanemask_lt() + cute.arch.activemask()) + "
        "cutlass.Float32(cute.arch.brev(cutlass.Int32(t)) + cute.arch.bfe(cutlass.Int32(t), 1, 2)) + "
        "cute.arch.warp_reduction_sum(g[t])",
        "",
        None,
    ),
    "the DSL's own by the way": (
        "g[t] = cute.arch.fmax(g[t], g[t]) + cute.math.tanh(g[t], fastmath=True) + cute.math.erf(g[t])",
        "",
        None,
    ),
    "inline_asm": (ASM, "", "inline PTX: 'nanosleep.u32 1;'"),
    "inline_ptx": ('cute.arch.inline_ptx("nanosleep.u32 1;")', "", "inline PTX: 'nanosleep.u32 1;'"),
    "by name": (
        'ir.Operation.create("llvm.inline_asm", attributes={"asm_string": ir.StringAttr.get("trap;"), '
        '"constraints": ir.StringAttr.get("")})',
        "",
        "inline PTX: 'trap;'",
    ),
    "patched": (
        'setattr(__import__("cutlass").base_dsl.compiler.Compiler, "compile", print)',
        "",
        "the DSL's compiler is not what it was when it was loaded",
    ),
    "linked": ("", "--link-libraries=/nowhere/evil.bc", "a library that is linked to the kernel"),
}


def in_child(case):
    """Findings of one case in a process of its own, and how it ended."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            result = case()
        except BaseException:
            result = [["failed", traceback.format_exc()[-2000:]]]
        os.write(write, json.dumps(result).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text)


def drive_tirx(launches):
    import torch
    import tvm
    import tvm_ffi
    from tvm.backend.cuda.codegen import header, registry, schema
    from tvm.script import tirx as T
    from tvm.support import nvcc

    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    get = tvm_ffi.get_global_func
    kept = {
        name: get(name) for name in ("tvm_callback_cuda_compile", "ffi.Module.create.cuda", "target.build.cuda")
    }

    def build(body="A[t] = T.float32(0)", attr="pass"):
        module = tvm.IRModule({"main": tvm.script.from_source(KERNEL.format(body=body, attr=attr))})
        with target:
            return tvm.compile(module, target=target, tir_pipeline="tirx")

    def call_kernel():
        with target:
            T.call_kernel('extern "C" __global__ void f() {}', [[1], [32]], kernel_name="f")

    names = {
        "put": lambda name, function: tvm_ffi.register_global_func(name, function, override=True),
        "identity": lambda *values: values[0],
        "call_kernel": call_kernel,
        "KEPT": kept,
    }
    names |= {"get": get, "build": build, "registry": registry, "schema": schema, "header": header}
    names |= {"tvm": tvm, "nvcc": nvcc, "os": os}

    def case(what):
        def go():
            error = ""
            try:
                if what.startswith("hook:"):
                    eval(what.removeprefix("hook:"), names)
                elif what.startswith("attr:"):
                    build(attr=what.removeprefix("attr:"))
                else:
                    build(what)
            except BaseException as caught:  # a hatch that does not compile must be found all the same
                error = repr(caught)[-300:]
            return [*launches.violations(True), ["error", error]]

        return go

    return {
        "math": {body: in_child(case(body)) for body in MATH},
        "hatches": {name: in_child(case(what)) for name, (what, _) in HATCHES.items()},
        "solutions": {str(path): in_child(lambda path=path: solution(path, launches)) for path in ours("tirx")},
        "torch": torch.__version__,
    }


def drive_cutedsl(launches, folder):
    def case(number, body, options):
        def go():
            path = folder / f"evil{number}.py"
            path.write_text(CUTE.format(body=body or "pass", options=options))
            error = ""
            try:
                load(path)
            except BaseException as caught:
                error = repr(caught)[-300:]
            return [*launches.violations(True), ["error", error]]

        return go

    cases = enumerate(CUTE_CASES.items())
    return {
        "cases": {name: in_child(case(i, body, options)) for i, (name, (body, options, _)) in cases},
        "solutions": {str(path): in_child(lambda path=path: solution(path, launches)) for path in ours("cutedsl")},
    }


def ours(dsl):
    # those of CuTe DSL are many, and their verdicts say the same
    honest = ROOT.glob("tests/honest/*_tirx__*.py") if dsl == "tirx" else ()
    return [*sorted(ROOT.glob(f"problems/*/*/solutions/{dsl}.py")), *sorted(honest)]


def load(path):
    import importlib.util

    spec = importlib.util.spec_from_file_location("kernel", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernel"] = module
    spec.loader.exec_module(module)
    return module


def solution(path, launches):
    """Findings of an honest kernel that is run once; its launches and how it ended last."""
    from mkb_core.bench.problems import constants, get_problem, load_reference

    name = path.name if "__" in path.name else path.parents[1].name
    problem = get_problem(name[:3])
    reference = load_reference(problem)
    inputs = reference.make_inputs(constants(reference, "small"), "cpu")
    launches.begin(0, 1 << 16)
    error = ""
    try:
        load(path).solve(*inputs)
    except Exception as caught:
        error = repr(caught)
    return [*launches.violations(True), ["launches", str(sum(launches.names().values()))], ["error", error]]


def drive(dsl, folder):
    sys.path.insert(0, str(ROOT))
    from mkb_core.bench.launches import watch

    launches = watch(dsl, "emulated")
    facts = drive_tirx(launches) if dsl == "tirx" else drive_cutedsl(launches, Path(folder))
    print("\n" + json.dumps(facts))


@pytest.fixture(scope="module", params=["tirx", "cutedsl"])
def facts(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("guard")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, request.param, str(folder)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.dsl
def test_nothing_is_found_in_honest_kernels(facts):
    assert len(facts["solutions"]) >= 2
    for path, found in facts["solutions"].items():
        # whether a kernel runs here is for its own test to say
        assert [row[0] for row in found] == ["launches", "error"], (path, found)
        assert int(found[0][1]) > 0 or found[1][1], path


@pytest.mark.dsl
def test_ways_past_the_dsl_are_found_and_its_own_code_is_not(facts):
    for body, found in facts.get("math", {}).items():
        assert found == [["error", ""]], body
    for name, found in facts.get("hatches", {}).items():
        assert any(rule == "raw-cuda" and HATCHES[name][1] in text for rule, text in found), (name, found)
    for name, found in facts.get("cases", {}).items():
        expected = CUTE_CASES[name][2]
        texts = [text for rule, text in found if rule == "raw-cuda"]
        assert expected in texts if expected else found == [["error", ""]], (name, found)


if __name__ == "__main__":
    drive(*sys.argv[1:])
