"""The output buffer is a module global that every call overwrites completely before it returns it.

Looks like: the result of an earlier call.
"""

import torch
import tvm
from tvm.script import tirx as T

HIDDEN = 128
WARPS = 8
kernel = None
result = None


@T.prim_func
def rmsnorm(x_ptr: T.handle, w_ptr: T.handle, y_ptr: T.handle):
    rows = T.int32()
    X = T.match_buffer(x_ptr, (rows, HIDDEN), "bfloat16")
    W = T.match_buffer(w_ptr, (HIDDEN,), "bfloat16")
    Y = T.match_buffer(y_ptr, (rows, HIDDEN), "bfloat16")
    T.device_entry()
    block = T.cta_id([(rows + WARPS - 1) // WARPS])
    tid = T.thread_id([WARPS * 32])
    lane: T.let = tid % 32
    row: T.let = block * WARPS + tid // 32
    i64: T.let = T.cast(row, "int64")
    total = T.alloc_local((1,), "float32")
    total[0] = T.float32(0.0)
    if row < rows:
        for i in T.unroll(HIDDEN // 32):
            v: T.let[T.float32] = T.cast(X[i64, lane + 32 * i], "float32")
            total[0] = total[0] + v * v
    total[0] = T.cuda.warp_sum(total[0], 32)
    if row < rows:
        inv: T.let[T.float32] = T.rsqrt(total[0] / T.float32(HIDDEN) + T.float32(1e-6))
        for i in T.unroll(HIDDEN // 32):
            c: T.let = lane + 32 * i
            Y[i64, c] = T.cast(T.cast(X[i64, c], "float32") * inv * T.cast(W[c], "float32"), "bfloat16")


def build():
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        return tvm.compile(tvm.IRModule({"main": rmsnorm}), target=target, tir_pipeline="tirx").jit()["main"]


def solve(hidden_states, weight):
    global kernel, result
    if kernel is None:
        kernel = build()
    if result is None or result.shape != hidden_states.shape:
        result = torch.empty_like(hidden_states)
    kernel(hidden_states, weight, result)
    return result
