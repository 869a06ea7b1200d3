"""RMSNorm over many short bf16 rows, a few lanes per row, in CuTe DSL."""

import functools
import operator

import cutlass
import cutlass.cute as cute
import torch

EPS = 1e-6
VEC = 8  # bf16 elements in one 16-byte access
THREADS = 256
ROWS_PER_THREAD = 4


@cute.kernel
def rmsnorm_kernel(gX: cute.Tensor, gW: cute.Tensor, gY: cute.Tensor):
    # A row of 128 is 16 lanes x 16 bytes, so a warp covers two rows with one access and a row's sum needs
    # four shuffles and neither shared memory nor a barrier. Each group of lanes takes four rows: four loads
    # in flight per thread, and the weight is fetched once for the four.
    tid, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    rows = cute.size(gX, mode=[0])
    hidden = cute.size(gX, mode=[1])  # static: one compilation per hidden size
    lanes = hidden // VEC
    groups = THREADS // lanes
    lane, group = tid % lanes, tid // lanes
    first = block * (groups * ROWS_PER_THREAD) + group  # step i of the CTA reads `groups` adjacent rows

    x = cute.zipped_divide(gX, (1, VEC))  # ((1, VEC), (rows, lanes))
    y = cute.zipped_divide(gY, (1, VEC))
    w = cute.zipped_divide(gW, (VEC,))
    wf = cute.make_rmem_tensor(VEC, gW.element_type)
    xf = cute.make_rmem_tensor(cute.make_layout((VEC, ROWS_PER_THREAD)), gX.element_type)
    yf = cute.make_rmem_tensor(VEC, gY.element_type)

    for i in cutlass.range_constexpr(ROWS_PER_THREAD):
        # Rows past the end read the last row and are dropped at the store: clamping needs no branch, so the
        # loads go out back to back, and every lane stays alive for the shuffles.
        row = cutlass.min(first + i * groups, rows - 1)
        cute.autovec_copy(x[(0, None), (cutlass.Int64(row), lane)], xf[None, i])
    cute.autovec_copy(w[None, lane], wf)

    # The four sums come before the first shuffle: no load can sink below it, and the four chains of shuffles
    # are independent, so they overlap.
    totals = cute.make_rmem_tensor(ROWS_PER_THREAD, cutlass.Float32)
    for i in cutlass.range_constexpr(ROWS_PER_THREAD):
        v = xf[None, i].load().to(cutlass.Float32)
        totals[i] = (v * v).reduce(cute.ReductionOp.ADD, cutlass.Float32(0.0), 0)
    for i in cutlass.range_constexpr(ROWS_PER_THREAD):
        totals[i] = cute.arch.warp_reduction(totals[i], operator.add, threads_in_group=lanes)

    weight = wf.load().to(cutlass.Float32)
    for i in cutlass.range_constexpr(ROWS_PER_THREAD):
        inv = cute.math.rsqrt(totals[i] / cutlass.Float32(hidden) + cutlass.Float32(EPS))
        yf.store((xf[None, i].load().to(cutlass.Float32) * inv * weight).to(gY.element_type))
        row = first + i * groups
        if row < rows:
            cute.autovec_copy(yf, y[(0, None), (cutlass.Int64(row), lane)])


@cute.jit
def rmsnorm(mX: cute.Tensor, mW: cute.Tensor, mY: cute.Tensor, stream):
    rows_per_cta = THREADS * VEC // cute.size(mX, mode=[1]) * ROWS_PER_THREAD
    rmsnorm_kernel(mX, mW, mY).launch(
        grid=[cute.ceil_div(cute.size(mX, mode=[0]), rows_per_cta), 1, 1],
        block=[THREADS, 1, 1],
        stream=stream,
    )


@functools.cache
def compiled(hidden):
    """Compile for one hidden size; the row count stays symbolic, the stream is torch's current one."""
    assert hidden in (8, 16, 32, 64, 128, 256)  # a power of two of lanes, at most a warp
    rows = cute.sym_int32()

    def matrix():
        return cute.runtime.make_fake_compact_tensor(
            cutlass.BFloat16, (rows, hidden), stride_order=(1, 0), assumed_align=16
        )

    weight = cute.runtime.make_fake_compact_tensor(cutlass.BFloat16, (hidden,), assumed_align=16)
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(rmsnorm, matrix(), weight, matrix(), stream, options="--enable-tvm-ffi")


def solve(hidden_states, weight):
    output = torch.empty_like(hidden_states)
    compiled(hidden_states.shape[-1])(hidden_states, weight, output)
    return output
