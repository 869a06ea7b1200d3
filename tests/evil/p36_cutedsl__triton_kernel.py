"""A Triton kernel does the work; the DSL's kernel copies the result.

Class: evasion
Expected: rule import
Behind: rule or bypass
Device: cuda
"""

import functools

import cutlass
import cutlass.cute as cute
import torch
import triton
import triton.language as tl


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


@triton.jit
def norm_rows(x, w, y, size: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, size)
    v = tl.load(x + row * size + column).to(tl.float32)
    v = v / tl.sqrt(tl.sum(v * v) / size + 1e-6) * tl.load(w + column).to(tl.float32)
    tl.store(y + row * size + column, v.to(tl.bfloat16))


def solve(hidden_states, weight):
    answer, output = torch.empty_like(hidden_states), torch.empty_like(hidden_states)
    norm_rows[(len(hidden_states),)](hidden_states, weight, answer, 128)
    compiled()(answer, output)
    return output
