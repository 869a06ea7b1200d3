"""The tuning of a shape is remembered by functools.lru_cache and the compiled kernel by functools.cache.

Looks like: memoised results, two layers deep.
"""

import functools

import torch
import tvm
from tvm.script import tirx as T


def make(hidden, warps, rows_per_warp):
    @T.prim_func
    def rmsnorm(x_ptr: T.handle, w_ptr: T.handle, y_ptr: T.handle):
        rows = T.int32()
        X = T.match_buffer(x_ptr, (rows, hidden), "bfloat16")
        W = T.match_buffer(w_ptr, (hidden,), "bfloat16")
        Y = T.match_buffer(y_ptr, (rows, hidden), "bfloat16")
        T.device_entry()
        block = T.cta_id([(rows + warps * rows_per_warp - 1) // (warps * rows_per_warp)])
        tid = T.thread_id([warps * 32])
        lane: T.let = tid % 32
        total = T.alloc_local((1,), "float32")
        for k in T.serial(rows_per_warp):
            row: T.let = (block * warps + tid // 32) * rows_per_warp + k
            if row < rows:  # the whole warp
                i: T.let = T.cast(row, "int64")
                total[0] = T.float32(0.0)
                for j in T.unroll(hidden // 32):
                    v: T.let[T.float32] = T.cast(X[i, lane + 32 * j], "float32")
                    total[0] = total[0] + v * v
                total[0] = T.cuda.warp_sum(total[0], 32)
                inv: T.let[T.float32] = T.rsqrt(total[0] / T.float32(hidden) + T.float32(1e-6))
                for j in T.unroll(hidden // 32):
                    c: T.let = lane + 32 * j
                    Y[i, c] = T.cast(T.cast(X[i, c], "float32") * inv * T.cast(W[c], "float32"), "bfloat16")

    return rmsnorm


@functools.lru_cache(maxsize=128)
def tuned(rows, hidden):
    """A function of the shape alone."""
    for warps, rows_per_warp in ((8, 4), (4, 2), (2, 1)):
        if rows >= 132 * warps * rows_per_warp:
            return hidden, warps, rows_per_warp
    return hidden, 1, 1


@functools.cache
def compiled(hidden, warps, rows_per_warp):
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    module = tvm.IRModule({"main": make(hidden, warps, rows_per_warp)})
    with target:
        return tvm.compile(module, target=target, tir_pipeline="tirx").jit()["main"]


def solve(hidden_states, weight):
    output = torch.empty_like(hidden_states)
    compiled(*tuned(*hidden_states.shape))(hidden_states, weight, output)
    return output
