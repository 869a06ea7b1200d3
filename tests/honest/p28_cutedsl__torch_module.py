"""Wraps the kernel in a torch.nn.Module that is called within torch.inference_mode and a profiler range.

Looks like: a PyTorch model, and a mode entered inside solve.
"""

import functools
import operator

import cutlass
import cutlass.cute as cute
import torch
from torch import nn


@cute.kernel
def add_rmsnorm_kernel(gX: cute.Tensor, gR: cute.Tensor, gW: cute.Tensor, gY: cute.Tensor, eps: cutlass.Float32):
    lane, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    row, hidden = cutlass.Int64(row), cute.size(gX, mode=[1])
    total = cutlass.Float32(0.0)
    for c in cutlass.range(lane, hidden, 32, unroll=4):
        s = gX[row, c].to(cutlass.Float32) + gR[row, c].to(cutlass.Float32)
        total += s * s
    inv = cute.math.rsqrt(cute.arch.warp_reduction(total, operator.add) / hidden + eps)
    for c in cutlass.range(lane, hidden, 32, unroll=4):
        s = gX[row, c].to(cutlass.Float32) + gR[row, c].to(cutlass.Float32)
        gY[row, c] = (s * inv * gW[c].to(cutlass.Float32)).to(gY.element_type)


@cute.jit
def add_rmsnorm(mX: cute.Tensor, mR: cute.Tensor, mW: cute.Tensor, mY: cute.Tensor, eps: cutlass.Float32, stream):
    add_rmsnorm_kernel(mX, mR, mW, mY, eps).launch(
        grid=[cute.size(mX, mode=[0]), 1, 1], block=[32, 1, 1], stream=stream
    )


@functools.cache
def compiled(hidden):
    fake, rows = cute.runtime.make_fake_compact_tensor, cute.sym_int32()
    x, r, y = (fake(cutlass.BFloat16, (rows, hidden), stride_order=(1, 0)) for _ in range(3))
    w, eps = fake(cutlass.BFloat16, (hidden,)), cutlass.Float32(1e-5)
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(add_rmsnorm, x, r, w, y, eps, stream, options="--enable-tvm-ffi")


class AddRMSNorm(nn.Module):
    """The weight is an argument of every call, as the task wants it, not a parameter."""

    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, hidden_states, residual, weight):
        with torch.profiler.record_function("add_rmsnorm"):
            output = torch.empty_like(hidden_states)
            compiled(hidden_states.shape[-1])(hidden_states, residual, weight, output, self.eps)
        return output


MODEL = AddRMSNorm().eval()


def solve(hidden_states, residual, weight):
    with torch.no_grad(), torch.inference_mode():
        return MODEL(hidden_states, residual, weight)
