"""One launch for every block of rows that fits a budget of bytes, so the number of launches follows the shape.

Looks like: a loop of launches that pads the count.
"""

import functools
import math

import torch
import tvm
from tvm.script import tirx as T

BUDGET = 8 << 20  # bytes of one input in a launch
LEAST = 3  # launches, also where the budget would allow one


def make(hidden):
    @T.prim_func
    def add_rmsnorm(
        x_ptr: T.handle, r_ptr: T.handle, w_ptr: T.handle, y_ptr: T.handle, first: T.int32, count: T.int32
    ):
        rows = T.int32()
        X = T.match_buffer(x_ptr, (rows, hidden), "bfloat16")
        R = T.match_buffer(r_ptr, (rows, hidden), "bfloat16")
        W = T.match_buffer(w_ptr, (hidden,), "bfloat16")
        Y = T.match_buffer(y_ptr, (rows, hidden), "bfloat16")
        T.device_entry()
        block = T.cta_id([count])
        row: T.let = T.cast(first + block, "int64")
        lane = T.thread_id([32])
        total = T.alloc_local((1,), "float32")
        total[0] = T.float32(0.0)
        for i in T.serial(hidden // 32):
            c: T.let = i * 32 + lane
            s: T.let[T.float32] = T.cast(X[row, c], "float32") + T.cast(R[row, c], "float32")
            total[0] = total[0] + s * s
        total[0] = T.cuda.warp_sum(total[0], 32)
        inv: T.let[T.float32] = T.rsqrt(total[0] / T.float32(hidden) + T.float32(1e-5))
        for i in T.serial(hidden // 32):
            c: T.let = i * 32 + lane
            s: T.let[T.float32] = T.cast(X[row, c], "float32") + T.cast(R[row, c], "float32")
            Y[row, c] = T.cast(s * inv * T.cast(W[c], "float32"), "bfloat16")

    return add_rmsnorm


@functools.cache
def compiled(hidden):
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        return tvm.compile(tvm.IRModule({"main": make(hidden)}), target=target, tir_pipeline="tirx").jit()["main"]


def solve(hidden_states, residual, weight):
    rows, hidden = hidden_states.shape
    output = torch.empty_like(hidden_states)
    step = max(1, min(BUDGET // (hidden * 2), math.ceil(rows / LEAST)))
    for first in range(0, rows, step):
        count = min(step, rows - first)
        compiled(hidden)(hidden_states, residual, weight, output, first, count)
    return output
