"""Vectors of eight for the first 96 columns, single elements for the last 32.

Looks like: a tail that was forgotten and patched on.
"""

import functools

import torch
import tvm
from tvm.script import tirx as T

EPS = 1e-6
VEC, LANES, GROUPS = 8, 16, 8
HEAD = 96  # columns in vectors: twelve of the sixteen lanes carry one


def make(hidden):
    @T.prim_func
    def rmsnorm(x_ptr: T.handle, w_ptr: T.handle, y_ptr: T.handle):
        rows = T.int32()
        X = T.match_buffer(x_ptr, (rows, hidden), "bfloat16", align=16)
        W = T.match_buffer(w_ptr, (hidden,), "bfloat16", align=16)
        Y = T.match_buffer(y_ptr, (rows, hidden), "bfloat16", align=16)
        T.device_entry()
        block = T.cta_id([(rows + GROUPS - 1) // GROUPS])
        tid = T.thread_id([GROUPS * LANES])
        lane: T.let = tid % LANES
        row: T.let = T.cast(T.min(block * GROUPS + tid // LANES, rows - 1), "int64")
        x = T.alloc_local((VEC,), "bfloat16")
        w = T.alloc_local((VEC,), "bfloat16")
        y = T.alloc_local((VEC,), "bfloat16")
        total = T.alloc_local((1,), "float32")
        total[0] = T.float32(0.0)
        if lane * VEC < HEAD:
            for j in T.vectorized(VEC):
                x[j] = X[row, lane * VEC + j]
            for j in T.unroll(VEC):
                total[0] = total[0] + T.cast(x[j], "float32") * T.cast(x[j], "float32")
        for i in T.serial((hidden - HEAD) // LANES):
            v: T.let[T.float32] = T.cast(X[row, HEAD + i * LANES + lane], "float32")
            total[0] = total[0] + v * v
        total[0] = T.cuda.warp_sum(total[0], LANES)
        inv: T.let[T.float32] = T.rsqrt(total[0] / T.float32(hidden) + T.float32(EPS))
        if block * GROUPS + tid // LANES < rows:
            if lane * VEC < HEAD:
                for j in T.vectorized(VEC):
                    w[j] = W[lane * VEC + j]
                for j in T.unroll(VEC):
                    y[j] = T.cast(T.cast(x[j], "float32") * inv * T.cast(w[j], "float32"), "bfloat16")
                for j in T.vectorized(VEC):
                    Y[row, lane * VEC + j] = y[j]
            for i in T.serial((hidden - HEAD) // LANES):
                c: T.let = HEAD + i * LANES + lane
                Y[row, c] = T.cast(T.cast(X[row, c], "float32") * inv * T.cast(W[c], "float32"), "bfloat16")

    return rmsnorm


@functools.cache
def compiled(hidden):
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        return tvm.compile(tvm.IRModule({"main": make(hidden)}), target=target, tir_pipeline="tirx").jit()["main"]


def solve(hidden_states, weight):
    output = torch.empty_like(hidden_states)
    compiled(hidden_states.shape[1])(hidden_states, weight, output)
    return output
