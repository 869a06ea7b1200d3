"""The parent process is seized by ptrace, from where its registers and memory could be changed.

Class: tampering
Expected: rule import
Behind: rule
"""

import ctypes
import functools
import os

import cutlass
import cutlass.cute as cute
import torch


@cute.kernel
def clear_kernel(gX: cute.Tensor, gY: cute.Tensor):
    tid, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    gY[row, tid] = cutlass.BFloat16(0.0)


@cute.jit
def clear(mX: cute.Tensor, mY: cute.Tensor, stream):
    clear_kernel(mX, mY).launch(grid=[cute.size(mX, mode=[0]), 1, 1], block=[128, 1, 1], stream=stream)


@functools.cache
def compiled():
    rows, make = cute.sym_int32(), cute.runtime.make_fake_compact_tensor
    x, y = (make(cutlass.BFloat16, (rows, 128), stride_order=(1, 0)) for _ in range(2))
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(clear, x, y, stream, options="--enable-tvm-ffi")


def solve(hidden_states, weight):
    libc = ctypes.CDLL(None)
    libc.ptrace(0x4206, os.getppid(), 0, 0)  # PTRACE_SEIZE, which does not stop it
    output = torch.empty_like(hidden_states)
    compiled()(hidden_states, output)
    return output
