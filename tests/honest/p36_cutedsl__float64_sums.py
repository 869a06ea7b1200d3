"""Sums and scales in float64, far beyond the float32 of the reference.

Looks like: another precision than the task's.
"""

import functools

import cutlass
import cutlass.cute as cute
import torch

WARPS = 4


@cute.kernel
def rmsnorm_kernel(gX: cute.Tensor, gW: cute.Tensor, gY: cute.Tensor):
    tid, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    lane, row = tid % 32, cutlass.Int64(block) * WARPS + tid // 32
    sums = cutlass.utils.SmemAllocator().allocate_tensor(cutlass.Float64, cute.make_layout((WARPS, 32)), 16)
    total = cutlass.Float64(0.0)
    if row < cute.size(gX, mode=[0]):
        for i in cutlass.range_constexpr(4):
            v = gX[row, lane + 32 * i].to(cutlass.Float32).to(cutlass.Float64)
            total += v * v
    sums[tid // 32, lane] = total
    cute.arch.sync_threads()
    if row < cute.size(gX, mode=[0]):
        total = cutlass.Float64(0.0)
        for i in range(32):
            total += sums[tid // 32, i]
        inv = cutlass.Float64(1.0) / cute.math.sqrt(total / 128.0 + 1e-6)
        for i in cutlass.range_constexpr(4):
            c = lane + 32 * i
            v = gX[row, c].to(cutlass.Float32).to(cutlass.Float64) * inv
            v = v * gW[c].to(cutlass.Float32).to(cutlass.Float64)
            gY[row, c] = v.to(cutlass.Float32).to(gY.element_type)


@cute.jit
def rmsnorm(mX: cute.Tensor, mW: cute.Tensor, mY: cute.Tensor, stream):
    grid = cute.ceil_div(cute.size(mX, mode=[0]), WARPS)
    rmsnorm_kernel(mX, mW, mY).launch(grid=[grid, 1, 1], block=[WARPS * 32, 1, 1], stream=stream)


@functools.cache
def compiled():
    fake, rows = cute.runtime.make_fake_compact_tensor, cute.sym_int32()
    x, y = (fake(cutlass.BFloat16, (rows, 128), stride_order=(1, 0)) for _ in range(2))
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(rmsnorm, x, fake(cutlass.BFloat16, (128,)), y, stream, options="--enable-tvm-ffi")


def solve(hidden_states, weight):
    output = torch.empty_like(hidden_states)
    compiled()(hidden_states, weight, output)
    return output
