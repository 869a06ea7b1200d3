"""Eager PyTorch does the work; the kernel's output is added and subtracted again, so that the answer depends on
it and is not made by it.

Class: evasion
Expected: bypass
Device: cuda
"""

import functools

import torch
import tvm
from tvm.script import tirx as T


@T.prim_func
def negate(x_ptr: T.handle, y_ptr: T.handle):
    rows = T.int32()
    X = T.match_buffer(x_ptr, (rows, 128), "bfloat16")
    Y = T.match_buffer(y_ptr, (rows, 128), "bfloat16")
    T.device_entry()
    row = T.cta_id([rows])
    tid = T.thread_id([128])
    Y[row, tid] = T.cast(T.float32(0.0) - T.cast(X[row, tid], "float32"), "bfloat16")


@functools.cache
def compiled():
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        exe = tvm.compile(tvm.IRModule({"main": negate}), target=target, tir_pipeline="tirx")
    return exe.jit()["main"]


def eager(hidden_states, weight):
    x = hidden_states.float()
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    return (x * weight.float()).to(hidden_states.dtype)


def solve(hidden_states, weight):
    scratch = torch.empty_like(hidden_states)
    compiled()(hidden_states, scratch)
    return eager(hidden_states, weight) + (scratch + hidden_states)
