"""Seven launches a call, one for each seventh of the rows, all on slices of one output.

Looks like: work spread over calls, or a launch count padded for show.
"""

import functools
import operator

import cutlass
import cutlass.cute as cute
import torch

CHUNKS = 7
WARPS = 4


@cute.kernel
def rmsnorm_kernel(gX: cute.Tensor, gW: cute.Tensor, gY: cute.Tensor):
    tid, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    row = cutlass.Int64(block) * WARPS + tid // 32
    lane = tid % 32
    if row < cute.size(gX, mode=[0]):
        x = cute.make_rmem_tensor(4, gX.element_type)
        w = cute.make_rmem_tensor(4, gW.element_type)
        y = cute.make_rmem_tensor(4, gY.element_type)
        cute.autovec_copy(cute.zipped_divide(gX[row, None], (4,))[None, lane], x)
        cute.autovec_copy(cute.zipped_divide(gW, (4,))[None, lane], w)
        v = x.load().to(cutlass.Float32)
        total = (v * v).reduce(cute.ReductionOp.ADD, cutlass.Float32(0.0), 0)
        inv = cute.math.rsqrt(cute.arch.warp_reduction(total, operator.add) / 128 + 1e-6)
        y.store((v * inv * w.load().to(cutlass.Float32)).to(gY.element_type))
        cute.autovec_copy(y, cute.zipped_divide(gY[row, None], (4,))[None, lane])


@cute.jit
def rmsnorm(mX: cute.Tensor, mW: cute.Tensor, mY: cute.Tensor, stream):
    grid = cute.ceil_div(cute.size(mX, mode=[0]), WARPS)
    rmsnorm_kernel(mX, mW, mY).launch(grid=[grid, 1, 1], block=[WARPS * 32, 1, 1], stream=stream)


@functools.cache
def compiled():
    def fake(*shape, **layout):
        return cute.runtime.make_fake_compact_tensor(cutlass.BFloat16, shape, assumed_align=16, **layout)

    rows = cute.sym_int32()
    x, y = (fake(rows, 128, stride_order=(1, 0)) for _ in range(2))
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(rmsnorm, x, fake(128), y, stream, options="--enable-tvm-ffi")


def solve(hidden_states, weight):
    output = torch.empty_like(hidden_states)
    for x, y in zip(hidden_states.chunk(CHUNKS), output.chunk(CHUNKS), strict=True):
        compiled()(x, weight, y)
    return output
