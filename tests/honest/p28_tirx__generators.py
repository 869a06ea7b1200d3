"""Builds, allocates and launches through generators, `yield from` and generator expressions.

Looks like: deferred work that runs when somebody asks for it.
"""

import functools
import itertools

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
        lane = T.thread_id([32])
        total = T.alloc_local((1,), "float32")
        s = T.alloc_local((hidden // 32,), "float32")
        total[0] = T.float32(0.0)
        for i in T.unroll(hidden // 32):
            s[i] = T.cast(X[row, i * 32 + lane], "float32") + T.cast(R[row, i * 32 + lane], "float32")
            total[0] = total[0] + s[i] * s[i]
        total[0] = T.cuda.warp_sum(total[0], 32)
        inv: T.let[T.float32] = T.rsqrt(total[0] / T.float32(hidden) + T.float32(1e-5))
        for i in T.unroll(hidden // 32):
            Y[row, i * 32 + lane] = T.cast(s[i] * inv * T.cast(W[i * 32 + lane], "float32"), "bfloat16")

    return add_rmsnorm


@functools.cache
def compiled(hidden):
    def steps():
        target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
        yield (module := tvm.IRModule({"main": make(hidden)}))
        with target:
            yield (built := tvm.compile(module, target=target, tir_pipeline="tirx"))
        yield built.jit()["main"]

    *_, kernel = steps()
    return kernel


def outputs(*inputs):
    yield from (torch.empty_like(t) for t in itertools.islice(inputs, 1))


def launches(kernel, inputs):
    for output in outputs(*inputs):
        kernel(*inputs, output)
        yield output


def solve(*inputs):
    (hidden,) = {t.shape[-1] for t in inputs}
    return next(iter([*launches(compiled(hidden), inputs)]))
