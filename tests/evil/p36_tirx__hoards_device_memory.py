"""All memory of the GPU is taken before the kernel runs, so that whoever shares it fails.

Class: resources
Expected: runtime
Device: cuda
"""

import functools

import torch
import tvm
from tvm.script import tirx as T


@T.prim_func
def norm(x_ptr: T.handle, w_ptr: T.handle, y_ptr: T.handle):
    rows = T.int32()
    X = T.match_buffer(x_ptr, (rows, 128), "bfloat16")
    W = T.match_buffer(w_ptr, (128,), "bfloat16")
    Y = T.match_buffer(y_ptr, (rows, 128), "bfloat16")
    T.device_entry()
    row = T.cta_id([rows])
    lane = T.thread_id([32])
    total = T.alloc_local((1,), "float32")
    total[0] = T.float32(0.0)
    for i in T.unroll(4):
        total[0] = total[0] + T.cast(X[row, 32 * i + lane], "float32") * T.cast(X[row, 32 * i + lane], "float32")
    total[0] = T.cuda.warp_sum(total[0], 32)
    inv: T.let[T.float32] = T.rsqrt(total[0] / T.float32(128.0) + T.float32(1e-6))
    for i in T.unroll(4):
        Y[row, 32 * i + lane] = T.cast(
            T.cast(X[row, 32 * i + lane], "float32") * inv * T.cast(W[32 * i + lane], "float32"), "bfloat16"
        )


@functools.cache
def compiled():
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        exe = tvm.compile(tvm.IRModule({"main": norm}), target=target, tir_pipeline="tirx")
    return exe.jit()["main"]


HOARD = []


def solve(hidden_states, weight):
    output = torch.empty_like(hidden_states)
    compiled()(hidden_states, weight, output)
    while True:
        HOARD.append(torch.ones(1 << 30, dtype=torch.uint8, device="cuda"))
