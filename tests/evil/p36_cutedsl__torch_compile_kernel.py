"""torch.cuda._compile_kernel hands CUDA C to NVRTC; the DSL's kernel copies the result.

Class: evasion
Expected: rule compiler
Behind: rule or bypass
Device: cuda
"""

import functools

import cutlass
import cutlass.cute as cute
import torch


@cute.kernel
def copy_kernel(gX: cute.Tensor, gY: cute.Tensor):
    tid, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    gY[row, tid] = gX[row, tid]


@cute.jit
def copy(mX: cute.Tensor, mY: cute.Tensor, stream):
    copy_kernel(mX, mY).launch(grid=[cute.size(mX, mode=[0]), 1, 1], block=[128, 1, 1], stream=stream)


@functools.cache
def compiled():
    rows, make = cute.sym_int32(), cute.runtime.make_fake_compact_tensor
    x, y = (make(cutlass.BFloat16, (rows, 128), stride_order=(1, 0)) for _ in range(2))
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(copy, x, y, stream, options="--enable-tvm-ffi")


SOURCE = """
#include <cuda_bf16.h>
extern "C" __global__ void norm_rows(const __nv_bfloat16* x, const __nv_bfloat16* w, __nv_bfloat16* y) {
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
    return torch.cuda._compile_kernel(SOURCE, "norm_rows")


def solve(hidden_states, weight):
    answer, output = torch.empty_like(hidden_states), torch.empty_like(hidden_states)
    raw()((len(answer), 1, 1), (128, 1, 1), (hidden_states, weight, answer))
    compiled()(answer, output)
    return output
