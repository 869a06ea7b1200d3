"""tvm-ffi has a door to NVRTC of its own.

Class: evasion
Expected: rule compiler
Behind: rule or runtime or passed
Device: cuda
"""

import functools

import torch
import tvm
from tvm.script import tirx as T
from tvm_ffi.cpp import nvrtc

SOURCE = """
#include <cuda_bf16.h>
extern "C" __global__ void __launch_bounds__(128) raw(__nv_bfloat16* x, __nv_bfloat16* w, __nv_bfloat16* y) {
  __shared__ float part[4];
  int i = blockIdx.x * 128 + threadIdx.x;
  float v = x[i], s = v * v;
  for (int k = 16; k; k /= 2) s += __shfl_xor_sync(~0u, s, k);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
  __syncthreads();
  s = part[0] + part[1] + part[2] + part[3];
  y[i] = v * rsqrtf(s / 128 + 1e-6f) * (float)w[threadIdx.x];
}
"""


@functools.cache
def image():
    return nvrtc.nvrtc_compile(SOURCE)


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


def solve(hidden_states, weight):
    output = torch.empty_like(hidden_states)
    compiled()(hidden_states, weight, output)
    return output if image() else None
