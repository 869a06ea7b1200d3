"""`solve` takes *inputs and keyword arguments with defaults that nobody gives, an output among them.

Looks like: another signature than the task's.
"""

import functools

import torch
import tvm
from tvm.script import tirx as T


def make(eps, threads):
    @T.prim_func
    def rmsnorm(x_ptr: T.handle, w_ptr: T.handle, y_ptr: T.handle):
        rows = T.int32()
        X = T.match_buffer(x_ptr, (rows, 128), "bfloat16")
        W = T.match_buffer(w_ptr, (128,), "bfloat16")
        Y = T.match_buffer(y_ptr, (rows, 128), "bfloat16")
        T.device_entry()
        block = T.cta_id([(rows + threads // 8 - 1) // (threads // 8)])
        tid = T.thread_id([threads])
        x = T.alloc_local((16,), "float32")
        total = T.alloc_local((1,), "float32")
        row: T.let = T.cast(T.min(block * (threads // 8) + tid // 8, rows - 1), "int64")
        total[0] = T.float32(0.0)
        for i in T.unroll(16):  # eight lanes to a row, sixteen elements to a lane
            x[i] = T.cast(X[row, i * 8 + tid % 8], "float32")
            total[0] = total[0] + x[i] * x[i]
        total[0] = T.cuda.warp_sum(total[0], 8)
        inv: T.let[T.float32] = T.rsqrt(total[0] / T.float32(128) + T.float32(eps))
        if block * (threads // 8) + tid // 8 < rows:
            for i in T.unroll(16):
                c: T.let = i * 8 + tid % 8
                Y[row, c] = T.cast(x[i] * inv * T.cast(W[c], "float32"), "bfloat16")

    return rmsnorm


@functools.cache
def compiled(eps, threads):
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        return tvm.compile(tvm.IRModule({"main": make(eps, threads)}), target=target, tir_pipeline="tirx").jit()[
            "main"
        ]


def solve(*inputs, eps=1e-6, threads=64, out=None, check=False, **unknown):
    hidden_states, weight, *rest = inputs
    if rest or unknown:
        raise TypeError(f"unexpected arguments {rest} {sorted(unknown)}")
    out = torch.empty_like(hidden_states) if out is None else out
    compiled(eps, threads)(hidden_states, weight, out)
    return out.clone() if check else out
