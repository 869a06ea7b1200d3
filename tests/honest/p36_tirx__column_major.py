"""The kernel writes column by column into a tensor made by empty_strided, whose strides are (1, rows).

Looks like: an output with the wrong layout.
"""

import functools

import torch
import tvm
from tvm.script import tirx as T

HIDDEN = 128
TILE = 64


@T.prim_func
def rmsnorm(x_ptr: T.handle, w_ptr: T.handle, t_ptr: T.handle):
    rows = T.int32()
    X = T.match_buffer(x_ptr, (rows, HIDDEN), "bfloat16")
    W = T.match_buffer(w_ptr, (HIDDEN,), "bfloat16")
    Yt = T.match_buffer(t_ptr, (HIDDEN, rows), "bfloat16")
    T.device_entry()
    block = T.cta_id([(rows + TILE - 1) // TILE])
    tid = T.thread_id([TILE])
    total = T.alloc_local((1,), "float32")
    row: T.let = T.cast(block * TILE + tid, "int64")
    if block * TILE + tid < rows:
        total[0] = T.float32(0.0)
        for c in T.serial(HIDDEN):
            total[0] = total[0] + T.cast(X[row, c], "float32") * T.cast(X[row, c], "float32")
        inv: T.let[T.float32] = T.rsqrt(total[0] / T.float32(HIDDEN) + T.float32(1e-6))
        for c in T.serial(HIDDEN):
            y: T.let[T.float32] = T.cast(X[row, c], "float32") * inv * T.cast(W[c], "float32")
            Yt[T.cast(c, "int64"), row] = T.cast(y, "bfloat16")


@functools.cache
def compiled():
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        return tvm.compile(tvm.IRModule({"main": rmsnorm}), target=target, tir_pipeline="tirx").jit()["main"]


def solve(hidden_states, weight):
    rows, hidden = hidden_states.shape
    output = torch.empty_strided((rows, hidden), (1, rows), dtype=hidden_states.dtype, device=hidden_states.device)
    compiled()(hidden_states, weight, output.t())
    return output
