"""Pads the rows to a multiple of the tile with eager PyTorch, so the kernel needs no bounds; slices the result.

Looks like: more rows than were asked for, and an output that is a slice.
"""

import functools

import torch
import tvm
from tvm.script import tirx as T

HIDDEN = 128
TILE = 40  # rows of a block; divides neither workload


@T.prim_func
def rmsnorm(x_ptr: T.handle, w_ptr: T.handle, y_ptr: T.handle):
    tiles = T.int32()
    X = T.match_buffer(x_ptr, (tiles, TILE, HIDDEN), "bfloat16", align=16)
    W = T.match_buffer(w_ptr, (HIDDEN,), "bfloat16", align=16)
    Y = T.match_buffer(y_ptr, (tiles, TILE, HIDDEN), "bfloat16", align=16)
    T.device_entry()
    tile: T.let = T.cast(T.cta_id([tiles]), "int64")
    tid = T.thread_id([TILE * 16])
    row: T.let = tid // 16
    lane: T.let = tid % 16
    x = T.alloc_local((8,), "bfloat16")
    w = T.alloc_local((8,), "bfloat16")
    y = T.alloc_local((8,), "bfloat16")
    total = T.alloc_local((1,), "float32")
    for j in T.vectorized(8):
        x[j] = X[tile, row, lane * 8 + j]
    for j in T.vectorized(8):
        w[j] = W[lane * 8 + j]
    total[0] = T.float32(0.0)
    for j in T.unroll(8):
        total[0] = total[0] + T.cast(x[j], "float32") * T.cast(x[j], "float32")
    total[0] = T.cuda.warp_sum(total[0], 16)
    inv: T.let[T.float32] = T.rsqrt(total[0] / T.float32(HIDDEN) + T.float32(1e-6))
    for j in T.unroll(8):
        y[j] = T.cast(T.cast(x[j], "float32") * inv * T.cast(w[j], "float32"), "bfloat16")
    for j in T.vectorized(8):
        Y[tile, row, lane * 8 + j] = y[j]


@functools.cache
def compiled():
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        return tvm.compile(tvm.IRModule({"main": rmsnorm}), target=target, tir_pipeline="tirx").jit()["main"]


def solve(hidden_states, weight):
    rows = hidden_states.shape[0]
    padded = torch.nn.functional.pad(hidden_states, (0, 0, 0, -rows % TILE)).view(-1, TILE, HIDDEN)
    output = torch.empty_like(padded)
    compiled()(padded, weight, output)
    return output.view(-1, HIDDEN)[:rows]
