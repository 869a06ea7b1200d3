"""Compiled kernels live in a module dictionary keyed by the shape and dtype of the input; no result does.

Looks like: a result cache keyed by shape.
"""

import operator

import cutlass
import cutlass.cute as cute
import torch

_CACHE = {}
WARPS = 8
DTYPES = {torch.bfloat16: cutlass.BFloat16, torch.float16: cutlass.Float16, torch.float32: cutlass.Float32}


@cute.kernel
def rmsnorm_kernel(gX: cute.Tensor, gW: cute.Tensor, gY: cute.Tensor):
    tid, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    hidden = cute.size(gX, mode=[1])
    lane = tid % 32
    row = cutlass.Int64(block) * WARPS + tid // 32
    if row < cute.size(gX, mode=[0]):
        total = cutlass.Float32(0.0)
        for i in cutlass.range_constexpr(hidden // 32):
            v = gX[row, lane + 32 * i].to(cutlass.Float32)
            total += v * v
        total = cute.arch.warp_reduction(total, operator.add)
        inv = cute.math.rsqrt(total / hidden + 1e-6)
        for i in cutlass.range_constexpr(hidden // 32):
            c = lane + 32 * i
            v = gX[row, c].to(cutlass.Float32) * inv * gW[c].to(cutlass.Float32)
            gY[row, c] = v.to(gY.element_type)


@cute.jit
def rmsnorm(mX: cute.Tensor, mW: cute.Tensor, mY: cute.Tensor, stream):
    grid = cute.ceil_div(cute.size(mX, mode=[0]), WARPS)
    rmsnorm_kernel(mX, mW, mY).launch(grid=[grid, 1, 1], block=[WARPS * 32, 1, 1], stream=stream)


def build(rows, hidden, dtype):
    fake = cute.runtime.make_fake_compact_tensor
    x, y = (fake(DTYPES[dtype], (rows, hidden), stride_order=(1, 0)) for _ in range(2))
    w = fake(DTYPES[dtype], (hidden,))
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(rmsnorm, x, w, y, stream, options="--enable-tvm-ffi")


def solve(hidden_states, weight):
    key = (*hidden_states.shape, hidden_states.dtype)
    if key not in _CACHE:
        _CACHE[key] = build(*key)
    output = torch.empty_like(hidden_states)
    _CACHE[key](hidden_states, weight, output)
    return output
