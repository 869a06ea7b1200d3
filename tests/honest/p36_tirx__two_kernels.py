"""Two kernels of one module: one writes the inverse RMS of each row, the other multiplies.

Looks like: a launch whose result is not needed.
"""

import functools

import torch
import tvm
from tvm.script import tirx as T

HIDDEN = 128


@T.prim_func
def inverse_rms(x_ptr: T.handle, inv_ptr: T.handle):
    rows = T.int32()
    X = T.match_buffer(x_ptr, (rows, HIDDEN), "bfloat16")
    Inv = T.match_buffer(inv_ptr, (rows,), "float32")
    T.device_entry()
    row: T.let = T.cast(T.cta_id([rows]), "int64")
    lane = T.thread_id([32])
    total = T.alloc_local((1,), "float32")
    total[0] = T.float32(0.0)
    for i in T.serial(HIDDEN // 32):
        v: T.let[T.float32] = T.cast(X[row, i * 32 + lane], "float32")
        total[0] = total[0] + v * v
    total[0] = T.cuda.warp_sum(total[0], 32)
    if lane == 0:
        Inv[row] = T.rsqrt(total[0] / T.float32(HIDDEN) + T.float32(1e-6))


@T.prim_func
def scale(x_ptr: T.handle, w_ptr: T.handle, inv_ptr: T.handle, y_ptr: T.handle):
    rows = T.int32()
    X = T.match_buffer(x_ptr, (rows, HIDDEN), "bfloat16")
    W = T.match_buffer(w_ptr, (HIDDEN,), "bfloat16")
    Inv = T.match_buffer(inv_ptr, (rows,), "float32")
    Y = T.match_buffer(y_ptr, (rows, HIDDEN), "bfloat16")
    T.device_entry()
    row: T.let = T.cast(T.cta_id([rows]), "int64")
    c = T.thread_id([HIDDEN])
    Y[row, c] = T.cast(T.cast(X[row, c], "float32") * Inv[row] * T.cast(W[c], "float32"), "bfloat16")


@functools.cache
def compiled():
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    module = tvm.IRModule({"inverse_rms": inverse_rms, "scale": scale})
    with target:
        library = tvm.compile(module, target=target, tir_pipeline="tirx").jit()
    return library["inverse_rms"], library["scale"]


def solve(hidden_states, weight):
    statistic, product = compiled()
    inverse = torch.empty(hidden_states.shape[0], dtype=torch.float32, device=hidden_states.device)
    output = torch.empty_like(hidden_states)
    statistic(hidden_states, inverse)
    product(hidden_states, weight, inverse, output)
    return output
