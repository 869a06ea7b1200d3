"""Adds a tensor to itself in CuTe DSL, through `from_dlpack`; an odd launch reads past the end."""

import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack


@cute.kernel
def double_kernel(x: cute.Tensor, o: cute.Tensor, shift: cute.typing.Int32):
    tid, _, _ = cute.arch.thread_idx()
    o[tid] = x[tid + shift] + x[tid]


@cute.jit
def double(x: cute.Tensor, o: cute.Tensor, shift: cute.typing.Int32):
    double_kernel(x, o, shift).launch(grid=[1, 1, 1], block=[64, 1, 1])


def solve(x, shift=0):
    out = torch.empty_like(x)
    double(from_dlpack(x), from_dlpack(out), shift)
    return out
