"""The kernel waits for a flag that nobody sets.

Class: resources
Expected: timeout
"""

import functools

import cutlass
import cutlass.cute as cute
import torch


@cute.kernel
def wait_kernel(gX: cute.Tensor, gY: cute.Tensor):
    tid, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    value = gX[row, tid]
    turns = cutlass.Int32(1)
    while turns > 0:
        turns = (turns + 1) & 0xFFFF | 1
        gY[row, tid] = value


@cute.jit
def wait(mX: cute.Tensor, mY: cute.Tensor, stream):
    wait_kernel(mX, mY).launch(grid=[cute.size(mX, mode=[0]), 1, 1], block=[128, 1, 1], stream=stream)


@functools.cache
def compiled():
    rows, make = cute.sym_int32(), cute.runtime.make_fake_compact_tensor
    x, y = (make(cutlass.BFloat16, (rows, 128), stride_order=(1, 0)) for _ in range(2))
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(wait, x, y, stream, options="--enable-tvm-ffi")


def solve(hidden_states, weight):
    output = torch.zeros_like(hidden_states)
    compiled()(hidden_states, output)
    return output
