"""One thread per element: each adds up its whole row, then scales its own element. No reduction, no exchange.

Looks like: an unfinished kernel.
"""

import functools

import torch
import tvm
from tvm.script import tirx as T


@T.prim_func
def rmsnorm(x_ptr: T.handle, w_ptr: T.handle, y_ptr: T.handle):
    rows, hidden = T.int32(), T.int32()
    X = T.match_buffer(x_ptr, (rows, hidden), "bfloat16")
    W = T.match_buffer(w_ptr, (hidden,), "bfloat16")
    Y = T.match_buffer(y_ptr, (rows, hidden), "bfloat16")
    T.device_entry()
    row: T.let = T.cast(T.cta_id([rows]), "int64")
    tid = T.thread_id([128])
    total = T.alloc_local((1,), "float32")
    if tid < hidden:
        total[0] = T.float32(0.0)
        for c in T.serial(hidden):
            total[0] = total[0] + T.cast(X[row, c], "float32") * T.cast(X[row, c], "float32")
        mean: T.let[T.float32] = total[0] / T.cast(hidden, "float32")
        value: T.let[T.float32] = T.cast(X[row, tid], "float32") / T.sqrt(mean + T.float32(1e-6))
        Y[row, tid] = T.cast(value * T.cast(W[tid], "float32"), "bfloat16")


@functools.cache
def compiled():
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        return tvm.compile(tvm.IRModule({"main": rmsnorm}), target=target, tir_pipeline="tirx")


def solve(hidden_states, weight):
    assert hidden_states.shape[1] <= 128
    output = torch.empty_like(hidden_states)
    compiled()(hidden_states, weight, output)  # the executable itself
    return output
