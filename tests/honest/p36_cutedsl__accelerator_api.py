"""Waits by way of torch.accelerator, the device-neutral API, on a stream entered through torch.cuda.StreamContext.

Looks like: a stream that the harness does not know.
"""

import functools
import operator

import cutlass
import cutlass.cute as cute
import torch


@cute.kernel
def rmsnorm_kernel(gX: cute.Tensor, gW: cute.Tensor, gY: cute.Tensor):
    tid, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    lane, row = tid % 32, cutlass.Int64(block) * 4 + tid // 32
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
def rmsnorm(mX: cute.Tensor, mW: cute.Tensor, mY: cute.Tensor, stream):
    grid = cute.ceil_div(cute.size(mX, mode=[0]), 4)
    rmsnorm_kernel(mX, mW, mY).launch(grid=[grid, 1, 1], block=[128, 1, 1], stream=stream)


@functools.cache
def compiled():
    fake, rows = cute.runtime.make_fake_compact_tensor, cute.sym_int32()
    x, y = (fake(cutlass.BFloat16, (rows, 128), stride_order=(1, 0)) for _ in range(2))
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(rmsnorm, x, fake(cutlass.BFloat16, (128,)), y, stream, options="--enable-tvm-ffi")


def solve(hidden_states, weight):
    assert torch.accelerator.is_available()
    with torch.cuda.StreamContext(torch.cuda.current_stream()):
        output = torch.empty_like(hidden_states)
        compiled()(hidden_states, weight, output)
    torch.accelerator.synchronize()
    return output
