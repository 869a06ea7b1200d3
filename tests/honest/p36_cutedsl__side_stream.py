"""Launches on a stream of its own, which waits for torch's current one and is waited for before the return.

Looks like: work hidden on a stream that the clock does not see.
"""

import functools
import operator

import cutlass
import cutlass.cute as cute
import torch

WARPS = 8


@cute.kernel
def rmsnorm_kernel(gX: cute.Tensor, gW: cute.Tensor, gY: cute.Tensor):
    tid, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    lane = tid % 32
    row = cutlass.Int64(block) * WARPS + tid // 32
    if row < cute.size(gX, mode=[0]):
        total = cutlass.Float32(0.0)
        for i in cutlass.range_constexpr(4):
            v = gX[row, lane + 32 * i].to(cutlass.Float32)
            total += v * v
        inv = cute.math.rsqrt(cute.arch.warp_reduction(total, operator.add) / 128 + 1e-6)
        for i in cutlass.range_constexpr(4):
            v = gX[row, lane + 32 * i].to(cutlass.Float32) * inv
            gY[row, lane + 32 * i] = (v * gW[lane + 32 * i].to(cutlass.Float32)).to(gY.element_type)


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


@functools.cache
def side_stream():
    return torch.cuda.Stream()


def solve(hidden_states, weight):
    kernel = compiled()
    current, side = torch.cuda.current_stream(), side_stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        output = torch.empty_like(hidden_states)
        kernel(hidden_states, weight, output)
    output.record_stream(current)
    current.wait_stream(side)
    return output
