"""RMSNorm over many short bf16 rows, a few lanes per row, in TIRx."""

import functools

import torch
import tvm
from tvm.script import tirx as T

EPS = 1e-6
VEC = 8  # bf16 elements in one 16-byte access
THREADS = 256
ROWS_PER_THREAD = 4


def make(hidden):
    assert hidden in (16, 32, 64, 128, 256)  # a power of two of lanes, at most a warp
    lanes = hidden // VEC
    groups = THREADS // lanes
    rows_per_cta = groups * ROWS_PER_THREAD

    # A row of 128 is 16 lanes x 16 bytes, so a warp covers two rows with one access and a row's sum needs
    # four shuffles and neither shared memory nor a barrier. Each group of lanes takes four rows: four loads
    # in flight per thread, and the weight is fetched once for the four.
    @T.prim_func
    def rmsnorm(x_ptr: T.handle, w_ptr: T.handle, y_ptr: T.handle):
        rows = T.int32()
        X = T.match_buffer(x_ptr, (rows, hidden), "bfloat16", align=16)
        W = T.match_buffer(w_ptr, (hidden,), "bfloat16", align=16)
        Y = T.match_buffer(y_ptr, (rows, hidden), "bfloat16", align=16)
        T.device_entry()
        block = T.cta_id([(rows + rows_per_cta - 1) // rows_per_cta])
        tid = T.thread_id([THREADS])
        lane: T.let = tid % lanes
        # step i of the CTA reads `groups` adjacent rows
        first: T.let = block * rows_per_cta + tid // lanes
        wv = T.alloc_local((VEC,), "bfloat16")
        xv = T.alloc_local((ROWS_PER_THREAD * VEC,), "bfloat16")
        yv = T.alloc_local((VEC,), "bfloat16")
        total = T.alloc_local((ROWS_PER_THREAD,), "float32")
        # Rows past the end read the last row and are dropped at the store: clamping needs no branch, so the
        # loads go out back to back, and every lane stays alive for the shuffles. The 64-bit row keeps
        # element offsets right past 2^31 elements.
        for i in T.unroll(ROWS_PER_THREAD):
            for j in T.vectorized(VEC):
                xv[i * VEC + j] = X[T.cast(T.min(first + i * groups, rows - 1), "int64"), lane * VEC + j]
        for j in T.vectorized(VEC):
            wv[j] = W[lane * VEC + j]
        # The four sums come before the first shuffle: no load can sink below it, and the four chains of
        # shuffles are independent, so they overlap.
        for i in T.unroll(ROWS_PER_THREAD):
            total[i] = T.float32(0.0)
            for j in T.unroll(VEC):
                total[i] = total[i] + T.cast(xv[i * VEC + j], "float32") * T.cast(xv[i * VEC + j], "float32")
        for i in T.unroll(ROWS_PER_THREAD):
            total[i] = T.cuda.warp_sum(total[i], lanes)
        for i in T.unroll(ROWS_PER_THREAD):
            inv: T.let[T.float32] = T.rsqrt(total[i] / T.float32(hidden) + T.float32(EPS))
            for j in T.unroll(VEC):
                yv[j] = T.cast(T.cast(xv[i * VEC + j], "float32") * inv * T.cast(wv[j], "float32"), "bfloat16")
            if first + i * groups < rows:
                for j in T.vectorized(VEC):
                    Y[T.cast(first + i * groups, "int64"), lane * VEC + j] = yv[j]

    return rmsnorm


@functools.cache
def compiled(hidden):
    """Compile for one hidden size; the row count stays symbolic."""
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        exe = tvm.compile(tvm.IRModule({"main": make(hidden)}), target=target, tir_pipeline="tirx")
    return exe.jit()["main"]  # the bare function: half the host time of calling the executable


def solve(hidden_states, weight):
    output = torch.empty_like(hidden_states)
    compiled(hidden_states.shape[-1])(hidden_states, weight, output)
    return output
