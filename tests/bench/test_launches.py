"""The shim of launches.c on made-up CUDA libraries: what it counts, names, spoils, drops and notes."""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A driver (and CUDA runtime) of host memory. A launch writes 0x11 over its last pointer's block.
FAKE = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
typedef struct { uint64_t params; char name[400]; } kernel;
typedef struct { char *base; size_t size; } block;
static block blocks[64];
static int count;
int fake_loads, fake_graphs, fake_launches, fake_waits;
void *fake_block(size_t size) { blocks[count] = (block){malloc(size), size}; return blocks[count++].base; }
void *fake_kernel(const char *name, uint64_t params) {
  kernel *k = calloc(1, sizeof *k);
  k->params = params;
  strncpy(k->name, name, sizeof k->name - 1);
  return k;
}
static block *find(uint64_t at) {
  for (int i = 0; i < count; i++)
    if (at >= (uint64_t)blocks[i].base && at < (uint64_t)blocks[i].base + blocks[i].size) return &blocks[i];
  return NULL;
}
int cuMemGetAddressRange_v2(uint64_t *base, size_t *size, uint64_t at) {
  block *b = find(at);
  if (!b) return 1;
  return *base = (uint64_t)b->base, *size = b->size, 0;
}
int cuFuncGetName(const char **name, kernel *k) { return *name = k->name, 0; }
int cuKernelGetName(const char **name, kernel *k) { return *name = k->name, 0; }
int cuFuncGetParamInfo(kernel *k, size_t i, size_t *at, size_t *size) {
  return i >= k->params ? 1 : (*at = 8 * i, *size = 8, 0);
}
int cuKernelGetParamInfo(kernel *k, size_t i, size_t *at, size_t *size) { return 1; }
int cuMemcpyDtoD_v2(uint64_t to, uint64_t from, size_t n) { return memcpy((void *)to, (void *)from, n), 0; }
int cuMemsetD8_v2(uint64_t to, unsigned char value, size_t n) { return memset((void *)to, value, n), 0; }
int cuCtxSynchronize(void) { return fake_waits++, 0; }
static int go(kernel *k, void **args) {
  if (!strcmp(k->name, "refused")) return 701;
  block *b = k->params ? find(*(uint64_t *)args[k->params - 1]) : NULL;
  if (b) memset(b->base, 0x11, b->size);
  return fake_launches++, 0;
}
int cuLaunchKernelEx(void *config, kernel *k, void **args, void **extra) { return go(k, args); }
int cuLaunchKernel(kernel *k, int a, int b, int c, int d, int e, int f, int g, void *s, void **args, void **x) {
  return go(k, args);
}
int cuModuleLoadData(void **module, const void *image) { return *module = &fake_loads, fake_loads++, 0; }
int cuModuleLoadFatBinary(void **module, const void *image) { return *module = &fake_loads, fake_loads++, 0; }
int cuModuleLoadDataEx(void **m, const void *image, unsigned n, void *o, void *v) { return fake_loads += n, 0; }
int cuModuleLoad(void **module, const char *path) { return fake_loads++, 0; }
int cuLibraryLoadData(void **l, const void *image, void *a, void *b, int n, void *c, void *d, int m) {
  return fake_loads += n + m, 0;
}
int cuStreamBeginCapture_v2(void *stream, int mode) { return fake_graphs += mode, 0; }
int cuGraphLaunch(void *graph, void *stream) { return fake_graphs++, 7; }
int cudaGraphLaunch(void *graph, void *stream) { return fake_graphs++, 7; }
int cudaStreamBeginCapture(void *stream, int mode) { return fake_graphs += mode, 0; }
int cudaStreamIsCapturing(void *stream, int *status) { return *status = 0, 0; }
int cudaGraphInstantiate(void *exec, void *graph, unsigned long long flags) { return fake_graphs += flags, 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
  return *function = fake_kernel(name, 2), 0;
}
int cuFuncSetAttribute(void *f, int a, int v) { return 0; }
int cuModuleUnload(void *m) { return 0; }
int cuDeviceGetName(char *name, int n, int d) { return strncpy(name, "fake", n), 0; }
int cuGetErrorName(int e, const char **t) { return *t = "error", 0; }
int cuGetErrorString(int e, const char **t) { return *t = "error", 0; }
int cuTensorMapEncodeTiled(void) { return 0; }
const char *cudaGetErrorName(int e) { return "error"; }
const char *cudaGetErrorString(int e) { return "error"; }
int cudaGetDevice(int *d) { return *d = 0, 0; }
int cudaGetDeviceCount(int *n) { return *n = 1, 0; }
int cudaDeviceGetAttribute(int *v, int a, int d) { return *v = a == 75 ? 9 : a == 76 ? 0 : 1024, 0; }
int cudaMalloc(void **p, size_t n) { return *p = fake_block(n), 0; }
#define NOTHING(name) int name(void) { return 0; }
NOTHING(cudaSetDevice) NOTHING(cudaFree) NOTHING(cudaFreeHost) NOTHING(cudaMallocHost) NOTHING(cudaMemGetInfo)
NOTHING(cudaEventCreate) NOTHING(cudaEventDestroy) NOTHING(cudaEventElapsedTime) NOTHING(cudaEventRecord)
NOTHING(cudaEventSynchronize) NOTHING(cudaGetDeviceProperties) NOTHING(cudaGetLastError)
NOTHING(cudaGraphDestroy) NOTHING(cudaGraphExecDestroy) NOTHING(cudaMemcpyAsync) NOTHING(cudaMemcpyPeerAsync)
NOTHING(cudaPeekAtLastError) NOTHING(cudaStreamCreate) NOTHING(cudaStreamCreateWithFlags)
NOTHING(cudaStreamDestroy) NOTHING(cudaStreamEndCapture) NOTHING(cudaStreamSynchronize)
NOTHING(cudaStreamWaitEvent)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Environment of a process with the shim preloaded and the made-up libraries in place of CUDA's."""
    from mkb_core.shim import shared_library

    folder = tmp_path_factory.mktemp("fake")
    (folder / "fake.c").write_text(FAKE)
    (folder / "empty.c").write_text("")
    for source, name in (("fake.c", "libcuda.so.1"), ("empty.c", "libcudart.so.13")):
        command = ["cc", "-w", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", folder / name, folder / source]
        subprocess.run(command, check=True)
    shim = shared_library(ROOT / "mkb_core" / "bench" / "launches.c")
    kept = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    return {**kept, "LD_PRELOAD": str(shim), "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(ROOT)}


def run(environment, part):
    command = [sys.executable, "-W", "ignore", __file__, part]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def facts(environment):
    return run(environment, "shim")


def test_launches_are_counted_and_named_call_by_call(facts):
    assert facts["first"] == [3, {"a_kernel": 2, "b_kernel": 1}, 3, 0]
    assert facts["again"] == [0, {}]
    name, count = facts["long"].popitem()
    assert (len(name), count) == (255, 1)
    assert facts["many"] == [64, 100, 37]
    assert facts["threads"] == [4000, {"a_kernel": 4000}]
    assert facts["unnamed"] == {"unknown": 1}


def test_a_launch_that_cuda_refuses_is_an_error_until_the_next_call(facts):
    status, text, after = facts["refused"]
    assert (status, after) == (701, "")
    assert text == "kernel refused could not be launched: CUDA error 701 (0 bytes of dynamic shared memory)"


def test_a_perturbed_launch_loses_the_middle_of_one_buffer(facts):
    """64 bytes of 0x11 from the kernel; the middle half of the first 40 of them is overwritten."""
    assert facts["perturbed"] == ["11" * 10 + "3c" * 20 + "11" * 34, "22" * 64, 2]
    assert facts["perturbed input"] == ["11" * 64, "22" * 10 + "3c" * 20 + "22" * 34, 2]
    assert facts["beyond"] == facts["off"] == ["11" * 64, "22" * 64]
    assert facts["launched"] > 0


def test_a_suppressed_launch_is_dropped_or_copies_and_is_never_perturbed(facts):
    assert facts["suppressed"] == ["33" * 64, "22" * 64, 1, 2, {"a_kernel": 1}]
    assert facts["copied"] == ["22" * 40 + "33" * 24, "22" * 64]


def test_graphs_are_noted_and_go_on_to_cuda(facts):
    assert facts["graphs"] == [
        ["graph", "stream capture during a call"],
        ["graph", "a CUDA graph was instantiated"],
        ["graph", "a CUDA graph was launched"],
    ]
    assert facts["graph results"] == [0, 0, 0, 7, 7]
    assert facts["graph calls"] == 2 + 3 + 4 + 2
    assert facts["absent"] == 500


def test_only_modules_that_were_announced_load_unnoted(facts):
    assert facts["announced"] == []
    assert facts["modules"] == [
        ["raw-cuda", f"a module of {size} bytes that the DSL's compiler did not produce"]
        for size in facts["sizes"]
    ] + [["raw-cuda", "a module was loaded from a file"]]
    assert facts["loads"] == 3 + 3 + 1 + 1 + (2 + 3) + 2 + 1


@pytest.mark.dsl
def test_what_tvm_compiles_is_announced_and_what_it_is_handed_is_not(environment):
    # TVM loads the real CUDA runtime, so that the made-up one must come before it
    preload = f"{environment['LD_PRELOAD']}:{environment['LD_LIBRARY_PATH']}/libcuda.so.1"
    facts = run({**environment, "LD_PRELOAD": preload}, "tirx")
    assert facts["honest"] == [1, {"main_kernel": 1}, [], 1]
    assert facts["nothing past the wrapped compiler"] == [2, []]
    assert facts["raw"][0][1].startswith("a module of")
    assert ["raw-cuda", "a CUDA module (ptx) that was made outside of TVM's build"] in facts["raw"]


@pytest.mark.dsl
def test_what_cute_dsl_compiles_is_announced(environment):
    from mkb_core.shim import shared_library

    fake = shared_library(ROOT / "mkb_core" / "emulator" / "cute_runtime.c")
    libraries = {"MKB_CUTE_RUNTIME": str(fake), "CUTE_DSL_LIBS": f"{environment['LD_PRELOAD']}:{fake}"}
    facts = run({**environment, **libraries, "CUTE_DSL_ARCH": "sm_90a"}, "cutedsl")
    (name, count), loads, launched, violations = facts["honest"]
    assert name.startswith("kernel_cutlass_nothing_kernel")
    assert (count, loads, launched, violations) == (2, 1, 2, [])
    assert facts["raw"] == [["raw-cuda", "a module of 4 bytes that the DSL's compiler did not produce"]]


@pytest.mark.dsl
def test_the_emulated_device_names_and_perturbs_too(environment):
    plain = {k: v for k, v in environment.items() if not k.startswith("LD_")}
    facts = run(plain, "emulated")
    assert facts["names"] == {"rmsnorm_kernel": 1}
    assert facts["violations"] == []
    # of 1024 bytes those from 256 to 768
    assert facts["changed"] == [128, 383, 256]
    assert facts["off"] == facts["beyond"] == facts["suppressed"] == 0


# ---- in the process with the shim


class Bench:
    """The process's view of shim and made-up driver."""

    def __init__(self):
        from mkb_core.bench.launches import CudaLaunches

        self.shim, self.fake = ctypes.CDLL(None), ctypes.CDLL("libcuda.so.1")
        self.fake.fake_block.restype = self.fake.fake_kernel.restype = ctypes.c_void_p
        self.fake.fake_block.argtypes = (ctypes.c_size_t,)
        self.fake.fake_kernel.argtypes = (ctypes.c_char_p, ctypes.c_uint64)
        self.shim.mkb_digest.restype = ctypes.c_uint64
        self.shim.mkb_allow.argtypes = (ctypes.c_uint64,)
        self.launches = CudaLaunches()
        self.blocks = [self.fake.fake_block(64) for _ in range(2)]  # input, output

    def kernel(self, name, params=2):
        return self.fake.fake_kernel(name.encode(), params)

    def launch(self, kernel, *values):
        values = [ctypes.c_uint64(v) for v in values]
        arguments = (ctypes.c_void_p * len(values))(*[ctypes.addressof(v) for v in values])
        return self.shim.cuLaunchKernelEx(None, ctypes.c_void_p(kernel), arguments, None)

    def call(self, pair=0, index=None):
        """One launch over fresh contents, at most 40 bytes of it to be looked at; output and input after it."""
        for block, value in zip(self.blocks, (0x22, 0x33), strict=True):
            ctypes.memset(block, value, 64)
        self.launches.perturb(index)
        self.launches.begin(pair, 40)
        assert self.launch(self.kernel("a_kernel"), *self.blocks) == 0
        return [ctypes.string_at(block, 64).hex() for block in reversed(self.blocks)]

    def value(self, name):
        return ctypes.c_int.in_dll(self.fake, name).value


def drive_shim():
    import threading

    bench, facts = Bench(), {}
    launches, a, b = bench.launches, bench.kernel("a_kernel", 0), bench.kernel("b_kernel", 0)
    launches.begin(0, 0)
    for kernel in (a, b, a):
        bench.launch(kernel)
    facts["first"] = [launches.count, launches.names(), bench.value("fake_launches"), launches.pointers]
    launches.begin(0, 0)
    facts["again"] = [launches.count, launches.names()]
    bench.launch(bench.kernel("k" * 300, 0))
    facts["long"] = launches.names()
    launches.begin(0, 0)
    for i in range(100):
        bench.launch(bench.kernel(f"k{i}", 0))
    facts["many"] = [len(launches.names()), launches.count, launches.names()["(more)"]]
    launches.begin(0, 0)
    threads = [threading.Thread(target=lambda: [bench.launch(a) for _ in range(1000)]) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    facts["threads"] = [launches.count, launches.names()]
    launches.begin(0, 0)
    bench.launch(bench.kernel("", 0))
    facts["unnamed"] = {name or "unknown": count for name, count in launches.names().items()}
    launches.begin(0, 0)
    status = bench.launch(bench.kernel("refused", 0))
    facts["refused"] = [status, launches.error()]
    launches.begin(0, 0)
    facts["refused"].append(launches.error())
    facts["perturbed"] = [*bench.call(index=1), launches.pointers]
    facts["perturbed input"] = [*bench.call(index=0), launches.pointers]
    facts["beyond"], facts["off"] = bench.call(index=5), bench.call()
    facts["launched"] = bench.value("fake_launches")
    facts |= graphs(bench)
    facts |= modules(bench)
    launches.suppress()
    facts["suppressed"] = [*bench.call(index=1), launches.count, launches.pointers, launches.names()]
    facts["copied"] = bench.call(pair=1 + 16 * 0 + 1)
    return facts


def graphs(bench):
    shim, status = bench.shim, ctypes.c_int()
    shim.cudaStreamIsCapturing(None, ctypes.byref(status)) if hasattr(shim, "cudaStreamIsCapturing") else None
    assert bench.launches.violations(True) == []
    results = [shim.cudaStreamBeginCapture(None, 2), shim.cuStreamBeginCapture_v2(None, 3)]
    results.append(shim.cudaGraphInstantiate(None, None, ctypes.c_uint64(4)))
    results += [shim.cudaGraphLaunch(None, None), shim.cuGraphLaunch(None, None)]
    calls = bench.value("fake_graphs")
    found = {"graphs": bench.launches.violations(True), "graph results": results, "graph calls": calls}
    return {**found, "absent": shim.cuGraphInstantiateWithParams(None, None, None)}


def elf(sections_last):
    """A small ELF image, whose program table or section table comes last."""
    head = bytearray(64)
    head[:5] = b"\x7fELF\x02"
    table, body = bytes(64), b"c" * 32
    first, second = (96, 160) if sections_last else (160, 96)
    head[0x20:0x28], head[0x28:0x30] = first.to_bytes(8, "little"), second.to_bytes(8, "little")
    head[0x36:0x3A], head[0x3A:0x3E] = b"\x40\x00\x01\x00", b"\x40\x00\x01\x00"
    return bytes(head) + body + table + table


def fat(body):
    return b"\x50\xed\x55\xba\x01\x00\x10\x00" + len(body).to_bytes(8, "little") + body


def modules(bench):
    shim, handle = bench.shim, ctypes.c_void_p()
    out = ctypes.byref(handle)
    before = len(bench.launches.violations(True))
    known = [b"\n// ptx", elf(True) + b"\0", fat(b"known")]
    for image in known:
        shim.mkb_allow(shim.mkb_digest(image))
        assert shim.cuModuleLoadData(out, image + b"\0what comes after an image is not of it") == 0
    announced = bench.launches.violations(True)[before:]
    other = [b"\n// ptx2", elf(False) + b"\0", fat(b"other one")]
    for image in other:
        shim.cuModuleLoadData(out, image)
    buffer = ctypes.create_string_buffer(fat(b"wrapped"))
    wrapper = b"\xb1CbF\x01\0\0\0" + ctypes.addressof(buffer).to_bytes(8, "little") + bytes(8)
    shim.cuModuleLoadFatBinary(out, wrapper)
    shim.cuModuleLoadDataEx(out, b"ex", 1, None, None)
    assert shim.cuLibraryLoadData(out, b"lib", None, None, 2, None, None, 3) == 0
    for _ in range(2):
        shim.cuModuleLoad(out, b"/nowhere")
    shim.cuModuleLoadData(out, b"ex")  # noted once
    sizes = [8, 224, 25, 23, 2, 3]
    found = bench.launches.violations(True)[before:]
    return {"announced": announced, "modules": found, "sizes": sizes, "loads": bench.value("fake_loads")}


TIRX = """
@T.prim_func
def main(a_ptr: T.handle, b_ptr: T.handle):
    A = T.match_buffer(a_ptr, (32,), "float32", align=16)
    B = T.match_buffer(b_ptr, (32,), "float32", align=16)
    T.device_entry()
    block = T.cta_id([1])
    t = T.thread_id([32])
    B[t] = A[t] * T.float32(FACTOR)
"""


def drive_tirx():
    import tvm
    import tvm_ffi

    from mkb_core.bench import guard
    from mkb_core.bench.launches import CudaLaunches
    from mkb_core.emulator.tirx import _toolkit

    os.environ["CUDA_PATH"] = str(_toolkit())
    launches = CudaLaunches(guard.install("tirx"))
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    tensors = [tvm.runtime.empty((32,), "float32", tvm.cuda(0)) for _ in range(2)]

    def build(factor):
        with target:
            module = tvm.IRModule({"main": tvm.script.from_source(TIRX.replace("FACTOR", factor))})
            return tvm.compile(module, target=target, tir_pipeline="tirx")

    fake, facts = ctypes.CDLL("libcuda.so.1"), {}
    launches.begin(0, 128)
    build("2.0").jit()["main"](*tensors)
    launched = ctypes.c_int.in_dll(fake, "fake_launches").value
    facts["honest"] = [launches.count, launches.names(), launches.violations(True), launched]
    build("3.0").jit()["main"](*tensors)
    loads = ctypes.c_int.in_dll(fake, "fake_loads").value
    facts["nothing past the wrapped compiler"] = [loads, launches.violations(True)]
    info = tvm_ffi.get_global_func("runtime.LoadMetaDataFromJSON")(
        '{"tvm_version": "0.1.0", "func_info": {"f": {"name": "f", "arg_types": [], "launch_param_tags": []}}}'
    )
    module = tvm_ffi.get_global_func("ffi.Module.create.cuda")(b"// ptx\n", "ptx", info, {})
    module.get_function("f")()
    facts["raw"] = launches.violations(True)
    return facts


def drive_cutedsl():
    import cutlass
    from cutlass import cute
    from cutlass.cutlass_dsl.cuda_jit_executor import CudaDialectJitCompiledFunction

    from mkb_core.bench import guard
    from mkb_core.bench.launches import CudaLaunches

    CudaDialectJitCompiledFunction.num_devices = 1
    launches = CudaLaunches(guard.install("cutedsl"))
    loaded, launched = [], []
    load = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_void_p)(lambda image: loaded.append(image) or 1)
    kinds = [ctypes.c_ssize_t, ctypes.c_char_p, *[ctypes.c_void_p] * 2, ctypes.c_uint64, ctypes.c_uint32]
    launch = ctypes.CFUNCTYPE(ctypes.c_int32, *kinds, ctypes.c_void_p)(lambda *values: launched.append(1) or 0)
    fake = ctypes.CDLL(os.environ["MKB_CUTE_RUNTIME"])
    fake.mkb_set_callbacks(load, launch)

    @cute.kernel
    def nothing_kernel(n: cutlass.Int32):
        t, _, _ = cute.arch.thread_idx()
        if t > n:
            cute.printf("%d", n)

    @cute.jit
    def nothing(n: cutlass.Int32):
        nothing_kernel(n).launch(grid=[1, 1, 1], block=[32, 1, 1])

    launches.begin(0, 0)
    function = cute.compile(nothing, cutlass.Int32(1))
    function(cutlass.Int32(40)), function(cutlass.Int32(40))
    facts = {"honest": [*launches.names().items(), len(loaded), len(launched), launches.violations(True)]}
    ctypes.CDLL(None)._cudaLibraryLoadData(ctypes.byref(ctypes.c_void_p()), b"text", None, None, 0, None, None, 0)
    return {**facts, "raw": launches.violations(True)}


def drive_emulated():
    import importlib.util

    import torch

    from mkb_core.bench.launches import watch
    from mkb_core.bench.problems import get_problem

    launches = watch("tirx", "emulated")
    spec = importlib.util.spec_from_file_location("kernel", get_problem("p36").solution_path("tirx"))
    kernel = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kernel)
    inputs = torch.randn(4, 128).bfloat16(), torch.randn(128).bfloat16()
    launches.begin(0, 1024)
    right = kernel.solve(*inputs)
    facts = {"names": launches.names(), "violations": launches.violations(True)}

    def changed(index):
        launches.perturb(index)
        launches.begin(0, 1024)
        return (kernel.solve(*inputs) != right).flatten().nonzero().flatten().tolist()

    found = changed(2)
    facts |= {"changed": [found[0], found[-1], len(found)], "off": len(changed(None)), "beyond": len(changed(3))}
    launches.suppress()
    launches.perturb(1)
    before = inputs[1].clone()
    launches.begin(0, 256)
    kernel.solve(*inputs)
    return {**facts, "suppressed": int((inputs[1] != before).sum())}


if __name__ == "__main__":
    drivers = {"shim": drive_shim, "tirx": drive_tirx, "cutedsl": drive_cutedsl, "emulated": drive_emulated}
    result = drivers[sys.argv[1]]()
    print("\n" + json.dumps(result))
