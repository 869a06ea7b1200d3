"""Reaches plain things by getattr and hasattr with constant names, and sets attributes of objects of its own.

Looks like: reflection.
"""

import types

import torch
import tvm
from tvm.script import tirx as T

STATE = types.SimpleNamespace(kernel={}, dtype=getattr(torch, "bfloat16", None))
setattr(STATE, "vector", 4)  # noqa: B010


def make(hidden, vector):
    @T.prim_func
    def add_rmsnorm(x_ptr: T.handle, r_ptr: T.handle, w_ptr: T.handle, y_ptr: T.handle):
        rows = T.int32()
        X = T.match_buffer(x_ptr, (rows, hidden), "bfloat16", align=8)
        R = T.match_buffer(r_ptr, (rows, hidden), "bfloat16", align=8)
        W = T.match_buffer(w_ptr, (hidden,), "bfloat16", align=8)
        Y = T.match_buffer(y_ptr, (rows, hidden), "bfloat16", align=8)
        T.device_entry()
        row: T.let = T.cast(T.cta_id([rows]), "int64")
        lane = T.thread_id([32])
        x = T.alloc_local((vector,), "bfloat16")
        r = T.alloc_local((vector,), "bfloat16")
        total = T.alloc_local((1,), "float32")
        total[0] = T.float32(0.0)
        for i in T.serial((hidden // vector + 31) // 32):
            c: T.let = (i * 32 + lane) * vector
            if c < hidden:
                for j in T.vectorized(vector):
                    x[j] = X[row, c + j]
                for j in T.vectorized(vector):
                    r[j] = R[row, c + j]
                for j in T.unroll(vector):
                    s: T.let[T.float32] = T.cast(x[j], "float32") + T.cast(r[j], "float32")
                    total[0] = total[0] + s * s
        inv: T.let[T.float32] = T.rsqrt(T.cuda.warp_sum(total[0], 32) / T.float32(hidden) + T.float32(1e-5))
        for i in T.serial((hidden + 31) // 32):
            c: T.let = i * 32 + lane
            if c < hidden:
                s: T.let[T.float32] = T.cast(X[row, c], "float32") + T.cast(R[row, c], "float32")
                Y[row, c] = T.cast(s * inv * T.cast(W[c], "float32"), "bfloat16")

    return add_rmsnorm


def compiled(hidden):
    if hidden not in STATE.kernel:
        target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
        with target:
            module = tvm.IRModule({"main": make(hidden, getattr(STATE, "vector", 1))})
            STATE.kernel[hidden] = tvm.compile(module, target=target, tir_pipeline="tirx").jit()["main"]
    return STATE.kernel[hidden]


def allocate(like):
    return torch.empty_like(like, dtype=STATE.dtype if hasattr(STATE, "dtype") else like.dtype)


def solve(hidden_states, residual, weight):
    solve.calls = getattr(solve, "calls", 0) + 1
    STATE.last_shape = hidden_states.shape
    output = allocate(hidden_states)
    compiled(hidden_states.shape[1])(hidden_states, residual, weight, output)
    return output
