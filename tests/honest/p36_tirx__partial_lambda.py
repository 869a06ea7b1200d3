"""`solve` is a functools.partial over a lambda over a closure; no `def solve` stands in the file.

Looks like: a file without `solve`.
"""

import functools
import operator

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
    block = T.cta_id([(rows + 3) // 4])
    warp, lane = T.warp_id([4]), T.lane_id([32])
    row: T.let = T.cast(T.min(block * 4 + warp, rows - 1), "int64")
    v = T.alloc_local((4,), "float32")
    total = T.alloc_local((1,), "float32")
    total[0] = T.float32(0.0)
    for i in T.unroll(4):
        v[i] = T.cast(X[row, i * 32 + lane], "float32")
        total[0] = total[0] + v[i] * v[i]
    total[0] = T.cuda.warp_sum(total[0], 32)
    inv: T.let[T.float32] = T.rsqrt(total[0] * T.float32(0.0078125) + T.float32(1e-6))
    if block * 4 + warp < rows:
        for i in T.unroll(4):
            Y[row, i * 32 + lane] = T.cast(v[i] * inv * T.cast(W[i * 32 + lane], "float32"), "bfloat16")


def maker():
    kernel = None

    def run(allocate, *inputs):
        nonlocal kernel
        if kernel is None:
            target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
            with target:
                kernel = tvm.compile(tvm.IRModule({"main": rmsnorm}), target=target, tir_pipeline="tirx")
                kernel = operator.itemgetter("main")(kernel.jit())
        outputs = [*map(allocate, inputs[:1])]
        kernel(*inputs, *outputs)
        return (lambda result: result)(*outputs)

    return run


solve = functools.partial(lambda run, allocate, *inputs: run(allocate, *inputs), maker(), torch.empty_like)
