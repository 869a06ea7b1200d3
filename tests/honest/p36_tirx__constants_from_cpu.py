"""A table of constants is made on the CPU at import and moved to the inputs' device in every call.

Looks like: a computation on the CPU.
"""

import functools

import torch
import tvm
from tvm.script import tirx as T

HIDDEN = 128
TABLE = torch.tensor([1.0 / HIDDEN, 1e-6], dtype=torch.float64).float()  # on the CPU


@T.prim_func
def rmsnorm(x_ptr: T.handle, w_ptr: T.handle, c_ptr: T.handle, y_ptr: T.handle):
    rows = T.int32()
    X = T.match_buffer(x_ptr, (rows, HIDDEN), "bfloat16")
    W = T.match_buffer(w_ptr, (HIDDEN,), "bfloat16")
    C = T.match_buffer(c_ptr, (2,), "float32")
    Y = T.match_buffer(y_ptr, (rows, HIDDEN), "bfloat16")
    T.device_entry()
    row: T.let = T.cast(T.cta_id([rows]), "int64")
    tid = T.thread_id([64])
    sums = T.alloc_shared((64,), "float32")
    a: T.let[T.float32] = T.cast(X[row, tid], "float32")
    b: T.let[T.float32] = T.cast(X[row, tid + 64], "float32")
    sums[tid] = a * a + b * b
    T.cuda.cta_sync()
    for i in T.unroll(6):  # 32, 16, ... 1
        if tid < T.shift_right(32, i):
            sums[tid] = sums[tid] + sums[tid + T.shift_right(32, i)]
        T.cuda.cta_sync()
    inv: T.let[T.float32] = T.rsqrt(sums[0] * C[0] + C[1])
    Y[row, tid] = T.cast(a * inv * T.cast(W[tid], "float32"), "bfloat16")
    Y[row, tid + 64] = T.cast(b * inv * T.cast(W[tid + 64], "float32"), "bfloat16")


@functools.cache
def compiled():
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        return tvm.compile(tvm.IRModule({"main": rmsnorm}), target=target, tir_pipeline="tirx").jit()["main"]


def solve(hidden_states, weight):
    constants = TABLE.to(hidden_states.device, non_blocking=True)
    output = torch.empty_like(hidden_states)
    compiled()(hidden_states, weight, constants, output)
    return output
