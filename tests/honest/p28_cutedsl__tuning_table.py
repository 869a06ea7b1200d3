"""Chooses block size and stages from a table by shape alone: small and large problems run different kernels.

Looks like: another path for the shapes that are checked.
"""

import functools
import operator

import cutlass
import cutlass.cute as cute
import torch

CONFIGS = {
    (4096, "many"): {"num_warps": 8, "num_stages": 2},
    (4096, "few"): {"num_warps": 16, "num_stages": 1},
    "default": {"num_warps": 2, "num_stages": 3},
}


@functools.lru_cache(maxsize=64)
def best_config(rows, hidden):
    name = (hidden, "many" if rows >= 132 * 8 else "few")
    return tuple(CONFIGS.get(name, CONFIGS["default"]).values())


@cute.kernel
def add_rmsnorm_kernel(
    gX: cute.Tensor, gR: cute.Tensor, gW: cute.Tensor, gY: cute.Tensor, config: cutlass.Constexpr
):
    warps, stages = config
    tid, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    row, hidden = cutlass.Int64(row), cute.size(gX, mode=[1])
    total = cutlass.Float32(0.0)
    for c in cutlass.range(tid, hidden, warps * 32, unroll=stages):
        s = gX[row, c].to(cutlass.Float32) + gR[row, c].to(cutlass.Float32)
        total += s * s
    sums = cutlass.utils.SmemAllocator().allocate_tensor(cutlass.Float32, cute.make_layout(warps), 16)
    total = cute.arch.warp_reduction(total, operator.add)
    if tid % 32 == 0:
        sums[tid // 32] = total
    cute.arch.sync_threads()
    total = sums.load().reduce(cute.ReductionOp.ADD, cutlass.Float32(0.0), 0)
    inv = cute.math.rsqrt(total / hidden + 1e-5)
    for c in cutlass.range(tid, hidden, warps * 32, unroll=stages):
        s = gX[row, c].to(cutlass.Float32) + gR[row, c].to(cutlass.Float32)
        gY[row, c] = (s * inv * gW[c].to(cutlass.Float32)).to(gY.element_type)


@cute.jit
def add_rmsnorm(
    mX: cute.Tensor, mR: cute.Tensor, mW: cute.Tensor, mY: cute.Tensor, stream, config: cutlass.Constexpr
):
    rows, threads = cute.size(mX, mode=[0]), config[0] * 32
    add_rmsnorm_kernel(mX, mR, mW, mY, config).launch(grid=[rows, 1, 1], block=[threads, 1, 1], stream=stream)


@functools.cache
def compiled(hidden, config):
    fake, rows = cute.runtime.make_fake_compact_tensor, cute.sym_int32()
    x, r, y = (fake(cutlass.BFloat16, (rows, hidden), stride_order=(1, 0)) for _ in range(3))
    w = fake(cutlass.BFloat16, (hidden,))
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(add_rmsnorm, x, r, w, y, stream, config, options="--enable-tvm-ffi")


def solve(hidden_states, residual, weight):
    rows, hidden = hidden_states.shape
    output = torch.empty_like(hidden_states)
    compiled(hidden, best_config(rows, hidden))(hidden_states, residual, weight, output)
    return output
