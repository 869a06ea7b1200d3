"""Adds, sums and scales in float64 and takes a true square root; only the result is rounded.

Looks like: another precision than the task's.
"""

import functools

import torch
import tvm
from tvm.script import tirx as T


def make(hidden):
    @T.prim_func
    def add_rmsnorm(x_ptr: T.handle, r_ptr: T.handle, w_ptr: T.handle, y_ptr: T.handle):
        rows = T.int32()
        X = T.match_buffer(x_ptr, (rows, hidden), "bfloat16")
        R = T.match_buffer(r_ptr, (rows, hidden), "bfloat16")
        W = T.match_buffer(w_ptr, (hidden,), "bfloat16")
        Y = T.match_buffer(y_ptr, (rows, hidden), "bfloat16")
        T.device_entry()
        row: T.let = T.cast(T.cta_id([rows]), "int64")
        tid = T.thread_id([64])
        sums = T.alloc_shared((64,), "float64")
        total = T.alloc_local((1,), "float64")
        total[0] = T.float64(0.0)
        for i in T.serial(hidden // 64):
            s: T.let[T.float32] = T.cast(X[row, i * 64 + tid], "float32") + T.cast(R[row, i * 64 + tid], "float32")
            total[0] = total[0] + T.cast(s, "float64") * T.cast(s, "float64")
        sums[tid] = total[0]
        T.cuda.cta_sync()
        total[0] = T.float64(0.0)
        for i in T.serial(64):
            total[0] = total[0] + sums[i]
        rms: T.let[T.float64] = T.sqrt(total[0] / T.float64(hidden) + T.float64(1e-5))
        for i in T.serial(hidden // 64):
            c: T.let = i * 64 + tid
            x: T.let[T.float64] = T.cast(T.cast(X[row, c], "float32"), "float64")
            r: T.let[T.float64] = T.cast(T.cast(R[row, c], "float32"), "float64")
            w: T.let[T.float64] = T.cast(T.cast(W[c], "float32"), "float64")
            Y[row, c] = T.cast(T.cast((x + r) / rms * w, "float32"), "bfloat16")

    return add_rmsnorm


@functools.cache
def compiled(hidden):
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        return tvm.compile(tvm.IRModule({"main": make(hidden)}), target=target, tir_pipeline="tirx").jit()["main"]


def solve(hidden_states, residual, weight):
    assert hidden_states.shape[1] % 64 == 0
    output = torch.empty_like(hidden_states)
    compiled(hidden_states.shape[1])(hidden_states, residual, weight, output)
    return output
