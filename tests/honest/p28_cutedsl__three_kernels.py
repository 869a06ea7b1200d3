"""Three launches a call: the sum in float32, the inverse RMS of its rows, the product; two tensors lie in between.

Looks like: decoy launches around the one that matters.
"""

import functools
import operator

import cutlass
import cutlass.cute as cute
import torch

THREADS = 64


@cute.kernel
def add_kernel(gX: cute.Tensor, gR: cute.Tensor, gS: cute.Tensor):
    tid, _, _ = cute.arch.thread_idx()
    row, part, _ = cute.arch.block_idx()
    row, c = cutlass.Int64(row), part * THREADS + tid
    if c < cute.size(gX, mode=[1]):
        gS[row, c] = gX[row, c].to(cutlass.Float32) + gR[row, c].to(cutlass.Float32)


@cute.kernel
def inverse_rms_kernel(gS: cute.Tensor, gInv: cute.Tensor):
    lane, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    hidden = cute.size(gS, mode=[1])
    total = cutlass.Float32(0.0)
    for c in range(lane, hidden, 32):
        v = gS[cutlass.Int64(row), c]
        total += v * v
    total = cute.arch.warp_reduction(total, operator.add)
    if lane == 0:
        gInv[row] = cute.math.rsqrt(total / hidden + 1e-5)


@cute.kernel
def scale_kernel(gS: cute.Tensor, gInv: cute.Tensor, gW: cute.Tensor, gY: cute.Tensor):
    tid, _, _ = cute.arch.thread_idx()
    row, part, _ = cute.arch.block_idx()
    c = part * THREADS + tid
    if c < cute.size(gS, mode=[1]):
        y = gS[cutlass.Int64(row), c] * gInv[row] * gW[c].to(cutlass.Float32)
        gY[cutlass.Int64(row), c] = y.to(gY.element_type)


@cute.jit
def add_rmsnorm(
    mX: cute.Tensor, mR: cute.Tensor, mW: cute.Tensor, mS: cute.Tensor, mI: cute.Tensor, mY: cute.Tensor, stream
):
    rows, parts = cute.size(mX, mode=[0]), cute.ceil_div(cute.size(mX, mode=[1]), THREADS)
    add_kernel(mX, mR, mS).launch(grid=[rows, parts, 1], block=[THREADS, 1, 1], stream=stream)
    inverse_rms_kernel(mS, mI).launch(grid=[rows, 1, 1], block=[32, 1, 1], stream=stream)
    scale_kernel(mS, mI, mW, mY).launch(grid=[rows, parts, 1], block=[THREADS, 1, 1], stream=stream)


@functools.cache
def compiled(hidden):
    fake, rows = cute.runtime.make_fake_compact_tensor, cute.sym_int32()
    x, r, y = (fake(cutlass.BFloat16, (rows, hidden), stride_order=(1, 0)) for _ in range(3))
    w, s = fake(cutlass.BFloat16, (hidden,)), fake(cutlass.Float32, (rows, hidden), stride_order=(1, 0))
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    inv = fake(cutlass.Float32, (rows,))
    return cute.compile(add_rmsnorm, x, r, w, s, inv, y, stream, options="--enable-tvm-ffi")


def solve(hidden_states, residual, weight):
    total = torch.empty_like(hidden_states, dtype=torch.float32)
    inverse = total.new_empty(total.shape[0])
    output = torch.empty_like(hidden_states)
    compiled(hidden_states.shape[1])(hidden_states, residual, weight, total, inverse, output)
    return output
