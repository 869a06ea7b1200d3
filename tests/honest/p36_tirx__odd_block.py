"""Blocks of 96 x 5 threads and three passes over the row: sizes that no table of good sizes holds.

Looks like: a launch that does not fit the problem.
"""

import functools

import torch
import tvm
from tvm.script import tirx as T

HIDDEN = 128
ROWS = 5  # of a block


@T.prim_func
def rmsnorm(x_ptr: T.handle, w_ptr: T.handle, y_ptr: T.handle):
    rows = T.int32()
    X = T.match_buffer(x_ptr, (rows, HIDDEN), "bfloat16")
    W = T.match_buffer(w_ptr, (HIDDEN,), "bfloat16")
    Y = T.match_buffer(y_ptr, (rows, HIDDEN), "bfloat16")
    T.device_entry()
    block = T.cta_id([(rows + ROWS - 1) // ROWS])
    tid = T.thread_id([ROWS * 96])
    squares = T.alloc_shared((ROWS * HIDDEN,), "float32")
    third = T.alloc_shared((ROWS * 3,), "float32")
    local: T.let = tid // 96
    column: T.let = tid % 96
    row: T.let = T.cast(T.min(block * ROWS + local, rows - 1), "int64")
    for i in T.unroll(2):
        c: T.let = column + 96 * i
        if c < HIDDEN:
            squares[local * HIDDEN + c] = T.cast(X[row, c], "float32") * T.cast(X[row, c], "float32")
    T.cuda.cta_sync()
    if column < 3:
        third[local * 3 + column] = T.float32(0.0)
        for i in T.serial(43):
            if column * 43 + i < HIDDEN:
                third[local * 3 + column] = third[local * 3 + column] + squares[local * HIDDEN + column * 43 + i]
    T.cuda.cta_sync()
    total: T.let[T.float32] = third[local * 3] + third[local * 3 + 1] + third[local * 3 + 2]
    inv: T.let[T.float32] = T.rsqrt(total / T.float32(HIDDEN) + T.float32(1e-6))
    if block * ROWS + local < rows:
        for i in T.unroll(2):
            c: T.let = column + 96 * i
            if c < HIDDEN:
                y: T.let[T.float32] = T.cast(X[row, c], "float32") * inv * T.cast(W[c], "float32")
                Y[row, c] = T.cast(y, "bfloat16")


@functools.cache
def compiled():
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        return tvm.compile(tvm.IRModule({"main": rmsnorm}), target=target, tir_pipeline="tirx").jit()["main"]


def solve(hidden_states, weight):
    output = torch.empty_like(hidden_states)
    compiled()(hidden_states, weight, output)
    return output
