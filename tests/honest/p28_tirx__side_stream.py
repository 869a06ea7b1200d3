"""Halves of the rows run on two streams of its own; events order them after the inputs and before the return.

Looks like: work hidden on streams that the clock does not see.
"""

import functools

import torch
import tvm
from tvm.script import tirx as T


def make(hidden):
    @T.prim_func
    def add_rmsnorm(x_ptr: T.handle, r_ptr: T.handle, w_ptr: T.handle, y_ptr: T.handle):
        rows = T.int32()
        X = T.match_buffer(x_ptr, (rows, hidden), "bfloat16")
        R = T.match_buffer(r_ptr, (rows, hidden), "bfloat16")
        W = T.match_buffer(w_ptr, (hidden,), "bfloat16")
        Y = T.match_buffer(y_ptr, (rows, hidden), "bfloat16")
        T.device_entry()
        row: T.let = T.cast(T.cta_id([rows]), "int64")
        tid = T.thread_id([128])
        partial = T.alloc_shared((4,), "float32")
        total = T.alloc_local((1,), "float32")
        total[0] = T.float32(0.0)
        for i in T.serial((hidden + 127) // 128):
            if i * 128 + tid < hidden:
                c: T.let = i * 128 + tid
                s: T.let[T.float32] = T.cast(X[row, c], "float32") + T.cast(R[row, c], "float32")
                total[0] = total[0] + s * s
        total[0] = T.cuda.warp_sum(total[0], 32)
        if tid % 32 == 0:
            partial[tid // 32] = total[0]
        T.cuda.cta_sync()
        mean: T.let[T.float32] = (partial[0] + partial[1] + partial[2] + partial[3]) / T.float32(hidden)
        inv: T.let[T.float32] = T.rsqrt(mean + T.float32(1e-5))
        for i in T.serial((hidden + 127) // 128):
            if i * 128 + tid < hidden:
                c: T.let = i * 128 + tid
                s: T.let[T.float32] = T.cast(X[row, c], "float32") + T.cast(R[row, c], "float32")
                Y[row, c] = T.cast(s * inv * T.cast(W[c], "float32"), "bfloat16")

    return add_rmsnorm


@functools.cache
def compiled(hidden):
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        return tvm.compile(tvm.IRModule({"main": make(hidden)}), target=target, tir_pipeline="tirx").jit()["main"]


@functools.cache
def streams():
    return torch.cuda.Stream(), torch.cuda.Stream(priority=-1)


def solve(hidden_states, residual, weight):
    kernel, current = compiled(hidden_states.shape[1]), torch.cuda.current_stream()
    output = torch.empty_like(hidden_states)
    ready = torch.cuda.Event()
    ready.record(current)
    halves = zip(*(t.tensor_split(2) for t in (hidden_states, residual, output)), strict=True)
    for stream, (x, r, y) in zip(streams(), halves, strict=True):
        stream.wait_event(ready)
        with torch.cuda.stream(stream):
            kernel(x, r, weight, y)
        current.wait_event(stream.record_event())
    return output
