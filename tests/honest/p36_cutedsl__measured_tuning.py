"""The first call times three block sizes with CUDA events and keeps the fastest size; every call computes anew.

Looks like: a first call that differs from the others, and a use of the clock.
"""

import functools
import operator

import cutlass
import cutlass.cute as cute
import torch

BEST = {}


@cute.kernel
def rmsnorm_kernel(gX: cute.Tensor, gW: cute.Tensor, gY: cute.Tensor, warps: cutlass.Constexpr):
    tid, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    row, lane = cutlass.Int64(block) * warps + tid // 32, tid % 32
    if row < cute.size(gX, mode=[0]):
        total = cutlass.Float32(0.0)
        for i in cutlass.range_constexpr(4):
            v = gX[row, lane + 32 * i].to(cutlass.Float32)
            total += v * v
        inv = cute.math.rsqrt(cute.arch.warp_reduction(total, operator.add) / 128 + 1e-6)
        for i in cutlass.range_constexpr(4):
            c = lane + 32 * i
            gY[row, c] = (gX[row, c].to(cutlass.Float32) * inv * gW[c].to(cutlass.Float32)).to(gY.element_type)


@cute.jit
def rmsnorm(mX: cute.Tensor, mW: cute.Tensor, mY: cute.Tensor, stream, warps: cutlass.Constexpr):
    grid = cute.ceil_div(cute.size(mX, mode=[0]), warps)
    rmsnorm_kernel(mX, mW, mY, warps).launch(grid=[grid, 1, 1], block=[warps * 32, 1, 1], stream=stream)


@functools.cache
def compiled(warps):
    fake, rows = cute.runtime.make_fake_compact_tensor, cute.sym_int32()
    x, y = (fake(cutlass.BFloat16, (rows, 128), stride_order=(1, 0)) for _ in range(2))
    w = fake(cutlass.BFloat16, (128,))
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(rmsnorm, x, w, y, stream, warps, options="--enable-tvm-ffi")


def milliseconds(kernel, arguments):
    kernel(*arguments)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(3):
        kernel(*arguments)
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 3


def solve(hidden_states, weight):
    output = torch.empty_like(hidden_states)
    arguments = (hidden_states, weight, output)
    if hidden_states.shape not in BEST:
        BEST[hidden_states.shape] = min((2, 4, 8), key=lambda warps: milliseconds(compiled(warps), arguments))
    compiled(BEST[hidden_states.shape])(*arguments)
    return output
