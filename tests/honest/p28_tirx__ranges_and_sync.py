"""Marks its phases with profiler ranges, reads the properties of the GPU and waits for the device, twice.

Looks like: profiling inside the timed call.
"""

import functools

import torch
import tvm
from tvm.script import tirx as T


def make(hidden, threads):
    @T.prim_func
    def add_rmsnorm(x_ptr: T.handle, r_ptr: T.handle, w_ptr: T.handle, y_ptr: T.handle):
        rows = T.int32()
        X = T.match_buffer(x_ptr, (rows, hidden), "bfloat16")
        R = T.match_buffer(r_ptr, (rows, hidden), "bfloat16")
        W = T.match_buffer(w_ptr, (hidden,), "bfloat16")
        Y = T.match_buffer(y_ptr, (rows, hidden), "bfloat16")
        T.device_entry()
        row: T.let = T.cast(T.cta_id([rows]), "int64")
        tid = T.thread_id([threads])
        partial = T.alloc_shared((threads // 32,), "float32")
        s = T.alloc_local((hidden // threads,), "float32")
        total = T.alloc_local((1,), "float32")
        total[0] = T.float32(0.0)
        for i in T.unroll(hidden // threads):
            c: T.let = i * threads + tid
            s[i] = T.cast(X[row, c], "float32") + T.cast(R[row, c], "float32")
            total[0] = total[0] + s[i] * s[i]
        total[0] = T.cuda.warp_sum(total[0], 32)
        if tid % 32 == 0:
            partial[tid // 32] = total[0]
        T.cuda.cta_sync()
        total[0] = T.float32(0.0)
        for i in T.unroll(threads // 32):
            total[0] = total[0] + partial[i]
        inv: T.let[T.float32] = T.rsqrt(total[0] / T.float32(hidden) + T.float32(1e-5))
        for i in T.unroll(hidden // threads):
            c: T.let = i * threads + tid
            Y[row, c] = T.cast(s[i] * inv * T.cast(W[c], "float32"), "bfloat16")

    return add_rmsnorm


@functools.cache
def compiled(hidden):
    most = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    threads = 256 if hidden % 256 == 0 and most >= 64 else 32
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        built = tvm.compile(tvm.IRModule({"main": make(hidden, threads)}), target=target, tir_pipeline="tirx")
    return built.jit()["main"]


def solve(hidden_states, residual, weight):
    torch.cuda.synchronize()
    with torch.profiler.record_function("add_rmsnorm"), torch.autograd.profiler.record_function("inner"):
        kernel = compiled(hidden_states.shape[1])
        output = torch.empty_like(hidden_states)
        torch.cuda.nvtx.range_push("launch")
        kernel(hidden_states, residual, weight, output)
        torch.cuda.nvtx.range_pop()
    torch.cuda.current_stream().synchronize()
    return output
