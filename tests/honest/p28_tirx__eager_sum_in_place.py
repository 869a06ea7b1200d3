"""Eager PyTorch adds in float32; the DSL kernel normalises that sum in place and in another buffer rounds it.

Looks like: eager PyTorch for half of the task, and a kernel that writes to what it reads.
"""

import functools

import torch
import tvm
from tvm.script import tirx as T


def make(hidden):
    @T.prim_func
    def normalise(s_ptr: T.handle, w_ptr: T.handle):
        rows = T.int32()
        S = T.match_buffer(s_ptr, (rows, hidden), "float32")
        W = T.match_buffer(w_ptr, (hidden,), "float32")
        T.device_entry()
        row: T.let = T.cast(T.cta_id([rows]), "int64")
        tid = T.thread_id([64])
        partial = T.alloc_shared((2,), "float32")
        total = T.alloc_local((1,), "float32")
        total[0] = T.float32(0.0)
        for i in T.serial((hidden + 63) // 64):
            if i * 64 + tid < hidden:
                total[0] = total[0] + S[row, i * 64 + tid] * S[row, i * 64 + tid]
        total[0] = T.cuda.warp_sum(total[0], 32)
        if tid % 32 == 0:
            partial[tid // 32] = total[0]
        T.cuda.cta_sync()
        inv: T.let[T.float32] = T.rsqrt((partial[0] + partial[1]) / T.float32(hidden) + T.float32(1e-5))
        for i in T.serial((hidden + 63) // 64):
            if i * 64 + tid < hidden:
                S[row, i * 64 + tid] = S[row, i * 64 + tid] * inv * W[i * 64 + tid]

    return normalise


@functools.cache
def compiled(hidden):
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        return tvm.compile(tvm.IRModule({"main": make(hidden)}), target=target, tir_pipeline="tirx").jit()["main"]


def solve(hidden_states, residual, weight):
    total = torch.add(hidden_states.float(), residual.float())
    compiled(total.shape[1])(total, weight.float())
    return total.to(hidden_states.dtype)
