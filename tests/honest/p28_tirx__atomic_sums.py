"""Many blocks add to the sum of a row with atomics on a buffer that eager PyTorch zeroes: the last bits vary.

Looks like: an unstable kernel.
"""

import functools

import torch
import tvm
from tvm.script import tirx as T


def make(hidden):
    parts = hidden // 64

    @T.prim_func
    def sums(x_ptr: T.handle, r_ptr: T.handle, s_ptr: T.handle):
        rows = T.int32()
        X = T.match_buffer(x_ptr, (rows, hidden), "bfloat16")
        R = T.match_buffer(r_ptr, (rows, hidden), "bfloat16")
        S = T.match_buffer(s_ptr, (rows,), "float32")
        T.device_entry()
        row, part = T.cta_id([rows, parts])
        tid = T.thread_id([64])
        c: T.let = part * 64 + tid
        i: T.let = T.cast(row, "int64")
        total = T.alloc_local((1,), "float32")
        total[0] = T.cast(X[i, c], "float32") + T.cast(R[i, c], "float32")
        total[0] = T.cuda.warp_sum(total[0] * total[0], 32)
        if tid % 32 == 0:
            T.evaluate(T.cuda.atomic_add(T.address_of(S[i]), total[0]))

    @T.prim_func
    def scale(x_ptr: T.handle, r_ptr: T.handle, w_ptr: T.handle, s_ptr: T.handle, y_ptr: T.handle):
        rows = T.int32()
        X = T.match_buffer(x_ptr, (rows, hidden), "bfloat16")
        R = T.match_buffer(r_ptr, (rows, hidden), "bfloat16")
        W = T.match_buffer(w_ptr, (hidden,), "bfloat16")
        S = T.match_buffer(s_ptr, (rows,), "float32")
        Y = T.match_buffer(y_ptr, (rows, hidden), "bfloat16")
        T.device_entry()
        row, part = T.cta_id([rows, parts])
        tid = T.thread_id([64])
        c: T.let = part * 64 + tid
        i: T.let = T.cast(row, "int64")
        inv: T.let[T.float32] = T.rsqrt(S[i] / T.float32(hidden) + T.float32(1e-5))
        total: T.let[T.float32] = T.cast(X[i, c], "float32") + T.cast(R[i, c], "float32")
        Y[i, c] = T.cast(total * inv * T.cast(W[c], "float32"), "bfloat16")

    return {"sums": sums, "scale": scale}


@functools.cache
def compiled(hidden):
    assert hidden % 64 == 0
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        library = tvm.compile(tvm.IRModule(make(hidden)), target=target, tir_pipeline="tirx").jit()
    return library["sums"], library["scale"]


def solve(hidden_states, residual, weight):
    add, scale = compiled(hidden_states.shape[1])
    sums = torch.zeros(hidden_states.shape[0], dtype=torch.float32, device=hidden_states.device)
    add(hidden_states, residual, sums)
    output = torch.empty_like(hidden_states)
    scale(hidden_states, residual, weight, sums, output)
    return output
