"""A C++ extension is built at import; nvcc and ninja would do the same for CUDA.

Class: evasion
Expected: rule compiler
Behind: rule or build
Device: cuda
"""

import functools

import cutlass
import cutlass.cute as cute
import torch
from torch.utils import cpp_extension


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
torch::Tensor norm(torch::Tensor x, torch::Tensor w) {
  auto v = x.to(torch::kFloat);
  return (v * torch::rsqrt(v.square().mean(-1, true) + 1e-6) * w.to(torch::kFloat)).to(x.scalar_type());
}
"""
NATIVE = cpp_extension.load_inline("native", SOURCE, functions=["norm"])


def solve(hidden_states, weight):
    answer = NATIVE.norm(hidden_states, weight)
    output = torch.empty_like(answer)
    compiled()(answer, output)
    return output
