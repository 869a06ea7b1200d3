"""Local variables that are named like modules and builtins: an output stride `os`, grid columns `gc`, `overrides`.

Looks like: `os`, `gc`, `vars`, `open` and `inspect`, none of which is imported or called.
"""

import functools
import operator

import cutlass
import cutlass.cute as cute
import torch

DEFAULTS = {"threads": 128, "unroll": 2}


@cute.kernel
def add_rmsnorm_kernel(
    gX: cute.Tensor, gR: cute.Tensor, gW: cute.Tensor, gY: cute.Tensor, threads: cutlass.Constexpr
):
    tid, _, _ = cute.arch.thread_idx()
    gc, gr, _ = cute.arch.block_idx()  # grid column and row
    row, hidden = cutlass.Int64(gc + gr), cute.size(gX, mode=[1])
    total = cutlass.Float32(0.0)
    for c in range(tid, hidden, threads):
        s = gX[row, c].to(cutlass.Float32) + gR[row, c].to(cutlass.Float32)
        total += s * s
    sums = cutlass.utils.SmemAllocator().allocate_tensor(cutlass.Float32, cute.make_layout(threads // 32), 16)
    total = cute.arch.warp_reduction(total, operator.add)
    if tid % 32 == 0:
        sums[tid // 32] = total
    cute.arch.sync_threads()
    total = sums.load().reduce(cute.ReductionOp.ADD, cutlass.Float32(0.0), 0)
    inv = cute.math.rsqrt(total / hidden + 1e-5)
    for c in range(tid, hidden, threads):
        s = gX[row, c].to(cutlass.Float32) + gR[row, c].to(cutlass.Float32)
        gY[row, c] = (s * inv * gW[c].to(cutlass.Float32)).to(gY.element_type)


@cute.jit
def add_rmsnorm(
    mX: cute.Tensor, mR: cute.Tensor, mW: cute.Tensor, mY: cute.Tensor, stream, threads: cutlass.Constexpr
):
    rows = cute.size(mX, mode=[0])
    add_rmsnorm_kernel(mX, mR, mW, mY, threads).launch(grid=[rows, 1, 1], block=[threads, 1, 1], stream=stream)


def settings(**overrides):
    vars = {**DEFAULTS, **overrides}
    return vars["threads"]


@functools.cache
def compiled(hidden):
    fake, rows = cute.runtime.make_fake_compact_tensor, cute.sym_int32()
    package = [fake(cutlass.BFloat16, (rows, hidden), stride_order=(1, 0)) for _ in range(3)]
    package.insert(2, fake(cutlass.BFloat16, (hidden,)))
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    threads = settings(threads=256) if hidden > 1024 else settings()
    return cute.compile(add_rmsnorm, *package, stream, threads, options="--enable-tvm-ffi")


def solve(hidden_states, residual, weight):
    output = torch.empty_like(hidden_states)
    os = output.stride(0)
    compiled(os)(hidden_states, residual, weight, output)
    return output
