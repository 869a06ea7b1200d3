"""Eager PyTorch computes the answer in float32 and the kernel only rounds it to bfloat16.

Class: evasion
Expected: bypass
Device: cuda
"""

import functools

import cutlass
import cutlass.cute as cute
import torch


@cute.kernel
def rounding_kernel(gX: cute.Tensor, gY: cute.Tensor):
    tid, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    gY[row, tid] = gX[row, tid].to(cutlass.BFloat16)


@cute.jit
def rounding(mX: cute.Tensor, mY: cute.Tensor, stream):
    rounding_kernel(mX, mY).launch(grid=[cute.size(mX, mode=[0]), 1, 1], block=[128, 1, 1], stream=stream)


@functools.cache
def compiled():
    rows, make = cute.sym_int32(), cute.runtime.make_fake_compact_tensor
    x, y = (
        make(cutlass.Float32, (rows, 128), stride_order=(1, 0)),
        make(cutlass.BFloat16, (rows, 128), stride_order=(1, 0)),
    )
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(rounding, x, y, stream, options="--enable-tvm-ffi")


def solve(hidden_states, weight):
    x = hidden_states.float()
    answer = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight.float()
    output = torch.empty_like(hidden_states)
    compiled()(answer, output)
    return output
