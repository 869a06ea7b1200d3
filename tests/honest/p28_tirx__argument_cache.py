"""Keeps the tvm-ffi views of its arguments by pointer, with the tensors, and a dataclass of settings.

Looks like: memoisation of results keyed by data_ptr.
"""

from __future__ import annotations

import dataclasses
import functools

import torch
import tvm
import tvm_ffi
from tvm.script import tirx as T


@dataclasses.dataclass(frozen=True)
class Config:
    hidden: int
    threads: int = 64
    eps: float = 1e-5


@dataclasses.dataclass
class Cache:
    views: dict[tuple, tuple] = dataclasses.field(default_factory=dict)
    outputs: dict[torch.Size, torch.Tensor] = dataclasses.field(default_factory=dict)

    def view(self, tensor: torch.Tensor) -> tvm_ffi.Tensor:
        key = (tensor.data_ptr(), tensor.shape, tensor.dtype)
        if key not in self.views:
            self.views[key] = (tvm_ffi.from_dlpack(tensor), tensor)
        return self.views[key][0]


def make(hidden, threads, eps):
    @T.prim_func
    def add_rmsnorm(x_ptr: T.handle, r_ptr: T.handle, w_ptr: T.handle, y_ptr: T.handle):
        rows = T.int32()
        X = T.match_buffer(x_ptr, (rows, hidden), "bfloat16")
        R = T.match_buffer(r_ptr, (rows, hidden), "bfloat16")
        W = T.match_buffer(w_ptr, (hidden,), "bfloat16")
        Y = T.match_buffer(y_ptr, (rows, hidden), "bfloat16")
        T.device_entry()
        row: T.let = T.cast(T.cta_id([rows]), "int64")
        tid = T.thread_id([threads])
        partial = T.alloc_shared((2,), "float32")
        total = T.alloc_local((1,), "float32")
        total[0] = T.float32(0.0)
        for i in T.serial(hidden // threads):
            c: T.let = i * threads + tid
            s: T.let[T.float32] = T.cast(X[row, c], "float32") + T.cast(R[row, c], "float32")
            total[0] = total[0] + s * s
        total[0] = T.cuda.warp_sum(total[0], 32)
        if tid % 32 == 0:
            partial[tid // 32] = total[0]
        T.cuda.cta_sync()
        inv: T.let[T.float32] = T.rsqrt((partial[0] + partial[1]) / T.float32(hidden) + T.float32(eps))
        for i in T.serial(hidden // threads):
            c: T.let = i * threads + tid
            s: T.let[T.float32] = T.cast(X[row, c], "float32") + T.cast(R[row, c], "float32")
            Y[row, c] = T.cast(s * inv * T.cast(W[c], "float32"), "bfloat16")

    return add_rmsnorm


@functools.cache
def compiled(config: Config):
    module = tvm.IRModule({"main": make(config.hidden, config.threads, config.eps)})
    with (target := tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})):
        return tvm.compile(module, target=target, tir_pipeline="tirx").jit()["main"]


CACHE = Cache()


def solve(hidden_states: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    output = CACHE.outputs.setdefault(hidden_states.shape, torch.empty_like(hidden_states))
    compiled(Config(output.shape[1]))(*map(CACHE.view, (hidden_states, residual, weight, output)))
    return output
