"""A TIRx function launches an external kernel given as CUDA source.

Class: evasion
Expected: rule raw-cuda
Behind: rule or build or runtime
Device: cuda
"""

import functools

import torch
import tvm
from tvm.script import tirx as T

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


@tvm.script.ir_module
class Module:
    @T.prim_func
    def main(x_ptr: T.handle, w_ptr: T.handle, y_ptr: T.handle):
        rows = T.int32()
        X = T.match_buffer(x_ptr, (rows, 128), "bfloat16")
        W = T.match_buffer(w_ptr, (128,), "bfloat16")
        Y = T.match_buffer(y_ptr, (rows, 128), "bfloat16")
        T.call_kernel(SOURCE, [rows, 128], X.data, W.data, Y.data, kernel_name="raw")


@functools.cache
def compiled():
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        return tvm.compile(Module, target=target, tir_pipeline="tirx").jit()["main"]


def solve(hidden_states, weight):
    output = torch.empty_like(hidden_states)
    compiled()(hidden_states, weight, output)
    return output
