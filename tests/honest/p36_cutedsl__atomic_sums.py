"""Four blocks of a row add to one float32 sum with atomics, so results differ between calls in the last bits.

Looks like: an unstable kernel.
"""

import functools
import operator

import cutlass
import cutlass.cute as cute
import torch


@cute.kernel
def sum_kernel(gX: cute.Tensor, gSum: cute.Tensor):
    tid, _, _ = cute.arch.thread_idx()
    row, part, _ = cute.arch.block_idx()
    v = gX[cutlass.Int64(row), part * 32 + tid].to(cutlass.Float32)
    total = cute.arch.warp_reduction(v * v, operator.add)
    if tid == 0:
        cute.arch.atomic_add((gSum.iterator + row).llvm_ptr, total)


@cute.kernel
def scale_kernel(gX: cute.Tensor, gW: cute.Tensor, gSum: cute.Tensor, gY: cute.Tensor):
    tid, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    inv = cute.math.rsqrt(gSum[row] / 128 + 1e-6)
    row = cutlass.Int64(row)
    gY[row, tid] = (gX[row, tid].to(cutlass.Float32) * inv * gW[tid].to(cutlass.Float32)).to(gY.element_type)


@cute.jit
def rmsnorm(mX: cute.Tensor, mW: cute.Tensor, mSum: cute.Tensor, mY: cute.Tensor, stream):
    rows = cute.size(mX, mode=[0])
    sum_kernel(mX, mSum).launch(grid=[rows, 4, 1], block=[32, 1, 1], stream=stream)
    scale_kernel(mX, mW, mSum, mY).launch(grid=[rows, 1, 1], block=[128, 1, 1], stream=stream)


@functools.cache
def compiled():
    fake, rows = cute.runtime.make_fake_compact_tensor, cute.sym_int32()
    x, y = (fake(cutlass.BFloat16, (rows, 128), stride_order=(1, 0)) for _ in range(2))
    w, sums = fake(cutlass.BFloat16, (128,)), fake(cutlass.Float32, (rows,))
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(rmsnorm, x, w, sums, y, stream, options="--enable-tvm-ffi")


def solve(hidden_states, weight):
    sums = torch.zeros(hidden_states.shape[0], dtype=torch.float32, device=hidden_states.device)
    output = torch.empty_like(hidden_states)
    compiled()(hidden_states, weight, sums, output)
    return output
