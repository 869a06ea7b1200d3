"""The runtime's own constructor makes a module of CUDA C that TIRx has never seen.

Class: evasion
Expected: rule raw-cuda
Behind: rule or runtime
Device: cuda
"""

import functools

import torch
import tvm
import tvm_ffi
from tvm.script import tirx as T
from tvm.support import nvcc

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
def raw():
    create = tvm_ffi.get_global_func("ffi.Module.create.cuda")
    return create(nvcc.compile_cuda(SOURCE, "cubin", "sm_90a", compiler="nvrtc"), "cubin", {}, {})


@T.prim_func
def copy(x_ptr: T.handle, y_ptr: T.handle):
    rows = T.int32()
    X = T.match_buffer(x_ptr, (rows, 128), "bfloat16")
    Y = T.match_buffer(y_ptr, (rows, 128), "bfloat16")
    T.device_entry()
    row = T.cta_id([rows])
    tid = T.thread_id([128])
    Y[row, tid] = X[row, tid]


@functools.cache
def compiled():
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        exe = tvm.compile(tvm.IRModule({"main": copy}), target=target, tir_pipeline="tirx")
    return exe.jit()["main"]


def solve(hidden_states, weight):
    answer, output = torch.empty_like(hidden_states), torch.empty_like(hidden_states)
    raw()["raw"](hidden_states, weight, answer, len(answer), 128)
    compiled()(answer, output)
    return output
