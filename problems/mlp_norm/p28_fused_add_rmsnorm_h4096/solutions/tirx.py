"""Residual add and RMSNorm in one pass over bf16 rows, in TIRx."""

import functools

import torch
import tvm
from tvm.script import tirx as T

EPS = 1e-5
VEC = 8  # bf16 elements in one 16-byte access
MAX_THREADS = 256
WARP = 32


def make(hidden):
    assert hidden % VEC == 0
    nvec = hidden // VEC
    threads = min(MAX_THREADS, (nvec + WARP - 1) // WARP * WARP)
    steps = (nvec + threads - 1) // threads
    warps = threads // WARP

    # One CTA per row. At 4096 columns a thread owns two 16-byte vectors of each input: four loads in flight
    # per thread and a row of sums that fits in 16 registers, so global memory is read once and six or more
    # CTAs share an SM to hide each other's reduction.
    @T.prim_func
    def add_rmsnorm(x_ptr: T.handle, r_ptr: T.handle, w_ptr: T.handle, y_ptr: T.handle):
        rows = T.int32()
        X = T.match_buffer(x_ptr, (rows, hidden), "bfloat16", align=16)
        R = T.match_buffer(r_ptr, (rows, hidden), "bfloat16", align=16)
        W = T.match_buffer(w_ptr, (hidden,), "bfloat16", align=16)
        Y = T.match_buffer(y_ptr, (rows, hidden), "bfloat16", align=16)
        T.device_entry()
        # A 64-bit row index keeps element offsets right past 2^31 elements.
        row: T.let = T.cast(T.cta_id([rows]), "int64")
        tid = T.thread_id([threads])
        partial = T.alloc_shared((warps,), "float32")
        xv = T.alloc_local((steps * VEC,), "bfloat16")
        rv = T.alloc_local((steps * VEC,), "bfloat16")
        wv = T.alloc_local((steps * VEC,), "bfloat16")
        yv = T.alloc_local((VEC,), "bfloat16")
        s = T.alloc_local((steps * VEC,), "float32")
        total = T.alloc_local((1,), "float32")
        # All loads are issued before any arithmetic. The weight (an L1/L2 hit after the first rows) is asked
        # for last, and before the reduction, so that its latency hides behind the barrier.
        for i in T.unroll(steps):
            if i * threads + tid < nvec:
                for j in T.vectorized(VEC):
                    xv[i * VEC + j] = X[row, (i * threads + tid) * VEC + j]
                for j in T.vectorized(VEC):
                    rv[i * VEC + j] = R[row, (i * threads + tid) * VEC + j]
        for i in T.unroll(steps):
            if i * threads + tid < nvec:
                for j in T.vectorized(VEC):
                    wv[i * VEC + j] = W[(i * threads + tid) * VEC + j]
        total[0] = T.float32(0.0)
        for i in T.unroll(steps):
            if i * threads + tid < nvec:
                for j in T.unroll(VEC):
                    # the sum is never rounded to bf16
                    s[i * VEC + j] = T.cast(xv[i * VEC + j], "float32") + T.cast(rv[i * VEC + j], "float32")
                    total[0] = total[0] + s[i * VEC + j] * s[i * VEC + j]
        # One barrier: every thread adds the per-warp sums itself instead of waiting for a second broadcast.
        total[0] = T.cuda.warp_sum(total[0], WARP)
        if warps > 1:
            if tid % WARP == 0:
                partial[tid // WARP] = total[0]
            T.cuda.cta_sync()
            total[0] = T.float32(0.0)
            for i in T.unroll(warps):
                total[0] = total[0] + partial[i]
        inv: T.let[T.float32] = T.rsqrt(total[0] / T.float32(hidden) + T.float32(EPS))
        for i in T.unroll(steps):
            if i * threads + tid < nvec:
                for j in T.unroll(VEC):
                    yv[j] = T.cast(s[i * VEC + j] * inv * T.cast(wv[i * VEC + j], "float32"), "bfloat16")
                for j in T.vectorized(VEC):
                    Y[row, (i * threads + tid) * VEC + j] = yv[j]

    return add_rmsnorm


@functools.cache
def compiled(hidden):
    """Compile for one hidden size; the row count stays symbolic."""
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        exe = tvm.compile(tvm.IRModule({"main": make(hidden)}), target=target, tir_pipeline="tirx")
    return exe.jit()["main"]  # the bare function: half the host time of calling the executable


def solve(hidden_states, residual, weight):
    output = torch.empty_like(hidden_states)
    compiled(hidden_states.shape[-1])(hidden_states, residual, weight, output)
    return output
