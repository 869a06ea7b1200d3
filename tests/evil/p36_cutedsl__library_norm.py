"""PyTorch's own fused rms_norm does the work, and a kernel copies what it returns.

Class: evasion
Expected: bypass
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


def solve(hidden_states, weight):
    answer = torch.nn.functional.rms_norm(hidden_states, (128,), weight, 1e-6)
    output = torch.empty_like(answer)
    compiled()(answer, output)
    return output
