"""Most of the file is never called: an eager version, a second kernel, a self-test, a benchmark that was given up.

Looks like: a fallback to the reference, and dead code that hides something.
"""

import collections
import functools
import itertools

import torch
import tvm
from tvm.script import tirx as T


def reference(hidden_states, weight):
    """What the kernel has to compute; for the author's own test."""
    x = hidden_states.float()
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight.float()).to(hidden_states.dtype)


def self_test(rows=17):
    x, w = torch.randn(rows, 128, device="cuda").bfloat16(), torch.ones(128, device="cuda").bfloat16()
    assert torch.allclose(solve(x, w), reference(x, w), rtol=0.02), "self test failed"


def configurations():
    yield from itertools.product((2, 4, 8), (1, 2), ("row", "tile"))


def make(lanes_per_row):
    @T.prim_func
    def rmsnorm(x_ptr: T.handle, w_ptr: T.handle, y_ptr: T.handle):
        rows = T.int32()
        X = T.match_buffer(x_ptr, (rows, 128), "bfloat16")
        W = T.match_buffer(w_ptr, (128,), "bfloat16")
        Y = T.match_buffer(y_ptr, (rows, 128), "bfloat16")
        T.device_entry()
        row: T.let = T.cast(T.cta_id([rows]), "int64")
        lane = T.thread_id([lanes_per_row])
        total = T.alloc_local((1,), "float32")
        total[0] = T.float32(0.0)
        for i in T.unroll(128 // lanes_per_row):
            v: T.let[T.float32] = T.cast(X[row, i * lanes_per_row + lane], "float32")
            total[0] = total[0] + v * v
        inv: T.let[T.float32] = T.rsqrt(
            T.cuda.warp_sum(total[0], lanes_per_row) / T.float32(128) + T.float32(1e-6)
        )
        for i in T.unroll(128 // lanes_per_row):
            c: T.let = i * lanes_per_row + lane
            Y[row, c] = T.cast(T.cast(X[row, c], "float32") * inv * T.cast(W[c], "float32"), "bfloat16")

    return rmsnorm


def benchmark(function, *inputs, repeats=100):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    collections.deque((function(*inputs) for _ in range(repeats)), maxlen=0)
    end.record()
    return end.synchronize() or start.elapsed_time(end) / repeats


@functools.cache
def compiled():
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        return tvm.compile(tvm.IRModule({"main": make(32)}), target=target, tir_pipeline="tirx").jit()["main"]


def solve(hidden_states, weight):
    output = torch.empty_like(hidden_states)
    compiled()(hidden_states, weight, output)
    return output


if __name__ == "__main__":
    self_test()
    print(benchmark(solve, torch.randn(520128, 128).bfloat16().cuda(), torch.ones(128).bfloat16().cuda()))
