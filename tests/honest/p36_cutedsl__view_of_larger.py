"""Returns rows 1 to n of an allocation of n + 2 rows, whose first and last are guards that no kernel writes.

Looks like: a tensor whose storage is not what its shape says.
"""

import functools
import operator

import cutlass
import cutlass.cute as cute

GUARD = 1


@cute.kernel
def rmsnorm_kernel(gX: cute.Tensor, gW: cute.Tensor, gY: cute.Tensor):
    tid, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    row = cutlass.Int64(row)
    total = cutlass.Float32(0.0)
    for i in cutlass.range_constexpr(2):
        v = gX[row, tid * 2 + i].to(cutlass.Float32)
        total += v * v
    total = cute.arch.warp_reduction(total, operator.add)
    shared = cutlass.utils.SmemAllocator().allocate_tensor(cutlass.Float32, cute.make_layout(2), 8)
    if tid % 32 == 0:
        shared[tid // 32] = total
    cute.arch.sync_threads()
    inv = cute.math.rsqrt((shared[0] + shared[1]) / 128 + 1e-6)
    for i in cutlass.range_constexpr(2):
        c = tid * 2 + i
        gY[row + GUARD, c] = (gX[row, c].to(cutlass.Float32) * inv * gW[c].to(cutlass.Float32)).to(gY.element_type)


@cute.jit
def rmsnorm(mX: cute.Tensor, mW: cute.Tensor, mY: cute.Tensor, stream):
    rmsnorm_kernel(mX, mW, mY).launch(grid=[cute.size(mX, mode=[0]), 1, 1], block=[64, 1, 1], stream=stream)


@functools.cache
def compiled():
    fake = cute.runtime.make_fake_compact_tensor
    x = fake(cutlass.BFloat16, (cute.sym_int32(), 128), stride_order=(1, 0))
    guarded = fake(cutlass.BFloat16, (cute.sym_int32(), 128), stride_order=(1, 0))
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(rmsnorm, x, fake(cutlass.BFloat16, (128,)), guarded, stream, options="--enable-tvm-ffi")


def solve(hidden_states, weight):
    rows, hidden = hidden_states.shape
    guarded = hidden_states.new_empty((rows + 2 * GUARD, hidden))
    compiled()(hidden_states, weight, guarded)
    return guarded[GUARD:-GUARD]
