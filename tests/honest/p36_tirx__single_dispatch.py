"""Allocates through functools.singledispatch, which reads the annotation of a function that is called `_`.

Looks like: dispatch on what the evaluator passes.
"""

import functools

import torch
import tvm
from tvm.script import tirx as T


@T.prim_func
def rmsnorm(x_ptr: T.handle, w_ptr: T.handle, y_ptr: T.handle):
    rows = T.int32()
    X = T.match_buffer(x_ptr, (rows, 128), "bfloat16")
    W = T.match_buffer(w_ptr, (128,), "bfloat16")
    Y = T.match_buffer(y_ptr, (rows, 128), "bfloat16")
    T.device_entry()
    row: T.let = T.cast(T.cta_id([rows]), "int64")
    lane = T.thread_id([32])
    total = T.alloc_local((1,), "float32")
    total[0] = T.float32(0.0)
    for i in T.unroll(4):
        v: T.let[T.float32] = T.cast(X[row, i * 32 + lane], "float32")
        total[0] = total[0] + v * v
    total[0] = T.cuda.warp_sum(total[0], 32)
    inv: T.let[T.float32] = T.rsqrt(total[0] / T.float32(128) + T.float32(1e-6))
    for i in T.unroll(4):
        c: T.let = i * 32 + lane
        Y[row, c] = T.cast(T.cast(X[row, c], "float32") * inv * T.cast(W[c], "float32"), "bfloat16")


@functools.cache
def compiled():
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        return tvm.compile(tvm.IRModule({"main": rmsnorm}), target=target, tir_pipeline="tirx").jit()["main"]


@functools.singledispatch
def allocate(like):
    raise TypeError(type(like).__name__)


@allocate.register
def _(like: torch.Tensor):
    return torch.empty_like(like)


def solve(hidden_states, weight):
    output = allocate(hidden_states)
    compiled()(hidden_states, weight, output)
    return output
