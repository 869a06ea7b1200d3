"""Clones the input in eager PyTorch and normalises the clone in place: the kernel's only output is its input.

Looks like: an identity, or a write to an input.
"""

import functools
import operator

import cutlass
import cutlass.cute as cute

WARPS = 16


@cute.kernel
def normalise_kernel(gY: cute.Tensor, gW: cute.Tensor):
    tid, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    lane = tid % 32
    row = cutlass.Int64(block) * WARPS + tid // 32
    if row < cute.size(gY, mode=[0]):
        v = cute.make_rmem_tensor(4, cutlass.Float32)
        for i in cutlass.range_constexpr(4):
            v[i] = gY[row, lane + 32 * i].to(cutlass.Float32)
        total = (v.load() * v.load()).reduce(cute.ReductionOp.ADD, cutlass.Float32(0.0), 0)
        inv = cute.math.rsqrt(cute.arch.warp_reduction(total, operator.add) / 128 + 1e-6)
        for i in cutlass.range_constexpr(4):
            w = gW[lane + 32 * i].to(cutlass.Float32)
            gY[row, lane + 32 * i] = (v[i] * inv * w).to(gY.element_type)


@cute.jit
def normalise_(mY: cute.Tensor, mW: cute.Tensor, stream):
    grid = cute.ceil_div(cute.size(mY, mode=[0]), WARPS)
    normalise_kernel(mY, mW).launch(grid=[grid, 1, 1], block=[WARPS * 32, 1, 1], stream=stream)


@functools.cache
def compiled():
    fake, rows = cute.runtime.make_fake_compact_tensor, cute.sym_int32()
    y = fake(cutlass.BFloat16, (rows, 128), stride_order=(1, 0))
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(normalise_, y, fake(cutlass.BFloat16, (128,)), stream, options="--enable-tvm-ffi")


def solve(hidden_states, weight):
    output = hidden_states.clone()
    compiled()(output, weight)
    return output
