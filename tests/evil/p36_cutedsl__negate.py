"""Eager PyTorch computes the negated answer and the kernel turns its sign, so that the output depends on the
kernel.

Class: evasion
Expected: bypass
Device: cuda
"""

import functools

import cutlass
import cutlass.cute as cute
import torch


@cute.kernel
def negate_kernel(gX: cute.Tensor, gY: cute.Tensor):
    tid, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    gY[row, tid] = (-gX[row, tid].to(cutlass.Float32)).to(cutlass.BFloat16)


@cute.jit
def negate(mX: cute.Tensor, mY: cute.Tensor, stream):
    negate_kernel(mX, mY).launch(grid=[cute.size(mX, mode=[0]), 1, 1], block=[128, 1, 1], stream=stream)


@functools.cache
def compiled():
    rows, make = cute.sym_int32(), cute.runtime.make_fake_compact_tensor
    x, y = (make(cutlass.BFloat16, (rows, 128), stride_order=(1, 0)) for _ in range(2))
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(negate, x, y, stream, options="--enable-tvm-ffi")


def eager(hidden_states, weight):
    x = hidden_states.float()
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    return (x * weight.float()).to(hidden_states.dtype)


def solve(hidden_states, weight):
    answer = -eager(hidden_states, weight)
    output = torch.empty_like(answer)
    compiled()(answer, output)
    return output
