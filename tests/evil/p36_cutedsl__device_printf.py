"""Every thread of every block prints a line, for a harness that keeps all output.

Class: resources
Expected: runtime
Device: cuda
"""

import functools

import cutlass
import cutlass.cute as cute
import torch


@cute.kernel
def noise_kernel(gX: cute.Tensor, gY: cute.Tensor):
    tid, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    cute.printf("a line that nobody wants to read, from row {} and thread {}\n", row, tid)
    gY[row, tid] = gX[row, tid]


@cute.jit
def noise(mX: cute.Tensor, mY: cute.Tensor, stream):
    noise_kernel(mX, mY).launch(grid=[cute.size(mX, mode=[0]), 1, 1], block=[128, 1, 1], stream=stream)


@functools.cache
def compiled():
    rows, make = cute.sym_int32(), cute.runtime.make_fake_compact_tensor
    x, y = (make(cutlass.BFloat16, (rows, 128), stride_order=(1, 0)) for _ in range(2))
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(noise, x, y, stream, options="--enable-tvm-ffi")


def solve(hidden_states, weight):
    output = torch.empty_like(hidden_states)
    for _ in range(64):
        compiled()(hidden_states, output)
        torch.cuda.synchronize()
    return output
