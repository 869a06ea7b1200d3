"""Two kernels share a workspace of partial sums that is kept between calls; each call writes all that it reads.

Looks like: results that survive from one call to the next.
"""

import functools
import operator

import cutlass
import cutlass.cute as cute
import torch

PARTS = 4  # blocks that share a row
WORKSPACE = None


@cute.kernel
def partial_kernel(gX: cute.Tensor, gR: cute.Tensor, gP: cute.Tensor):
    lane, _, _ = cute.arch.thread_idx()
    row, part, _ = cute.arch.block_idx()
    row, hidden = cutlass.Int64(row), cute.size(gX, mode=[1])
    total = cutlass.Float32(0.0)
    for c in range(part * 32 + lane, hidden, 32 * PARTS):
        s = gX[row, c].to(cutlass.Float32) + gR[row, c].to(cutlass.Float32)
        total += s * s
    total = cute.arch.warp_reduction(total, operator.add)
    if lane == 0:
        gP[row, part] = total


@cute.kernel
def scale_kernel(gX: cute.Tensor, gR: cute.Tensor, gW: cute.Tensor, gP: cute.Tensor, gY: cute.Tensor):
    tid, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    row, hidden = cutlass.Int64(row), cute.size(gX, mode=[1])
    total = (gP[row, 0] + gP[row, 1]) + (gP[row, 2] + gP[row, 3])
    inv = cute.math.rsqrt(total / hidden + 1e-5)
    for c in range(tid, hidden, 128):
        s = gX[row, c].to(cutlass.Float32) + gR[row, c].to(cutlass.Float32)
        gY[row, c] = (s * inv * gW[c].to(cutlass.Float32)).to(gY.element_type)


@cute.jit
def add_rmsnorm(mX: cute.Tensor, mR: cute.Tensor, mW: cute.Tensor, mP: cute.Tensor, mY: cute.Tensor, stream):
    rows = cute.size(mX, mode=[0])
    partial_kernel(mX, mR, mP).launch(grid=[rows, PARTS, 1], block=[32, 1, 1], stream=stream)
    scale_kernel(mX, mR, mW, mP, mY).launch(grid=[rows, 1, 1], block=[128, 1, 1], stream=stream)


@functools.cache
def compiled(hidden):
    fake, rows = cute.runtime.make_fake_compact_tensor, cute.sym_int32()
    x, r, y = (fake(cutlass.BFloat16, (rows, hidden), stride_order=(1, 0)) for _ in range(3))
    w, p = fake(cutlass.BFloat16, (hidden,)), fake(cutlass.Float32, (cute.sym_int32(), PARTS), stride_order=(1, 0))
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(add_rmsnorm, x, r, w, p, y, stream, options="--enable-tvm-ffi")


def solve(hidden_states, residual, weight):
    global WORKSPACE
    rows, hidden = hidden_states.shape
    if WORKSPACE is None or WORKSPACE.shape[0] < rows:  # grows, never shrinks
        WORKSPACE = torch.empty(rows, PARTS, dtype=torch.float32, device=hidden_states.device)
    output = torch.empty_like(hidden_states)
    compiled(hidden)(hidden_states, residual, weight, WORKSPACE, output)
    return output
