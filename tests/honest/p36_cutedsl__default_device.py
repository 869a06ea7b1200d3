"""Makes the GPU torch's default device at import, for the constants it creates there; nothing is left in solve.

Looks like: a torch function mode that stays entered.
"""

import functools
import operator

import cutlass
import cutlass.cute as cute
import torch

torch.set_default_device("cuda")
torch.set_grad_enabled(False)
SETTINGS = torch.tensor([1.0 / 128, 1e-6], dtype=torch.float32)


@cute.kernel
def rmsnorm_kernel(gX: cute.Tensor, gW: cute.Tensor, gS: cute.Tensor, gY: cute.Tensor):
    tid, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    row = cutlass.Int64(row)
    total = cutlass.Float32(0.0)
    for c in range(tid, 128, 32):
        v = gX[row, c].to(cutlass.Float32)
        total += v * v
    inv = cute.math.rsqrt(cute.arch.warp_reduction(total, operator.add) * gS[0] + gS[1])
    for c in range(tid, 128, 32):
        gY[row, c] = (gX[row, c].to(cutlass.Float32) * inv * gW[c].to(cutlass.Float32)).to(gY.element_type)


@cute.jit
def rmsnorm(mX: cute.Tensor, mW: cute.Tensor, mS: cute.Tensor, mY: cute.Tensor, stream):
    rmsnorm_kernel(mX, mW, mS, mY).launch(grid=[cute.size(mX, mode=[0]), 1, 1], block=[32, 1, 1], stream=stream)


@functools.cache
def compiled():
    fake, rows = cute.runtime.make_fake_compact_tensor, cute.sym_int32()
    x, y = (fake(cutlass.BFloat16, (rows, 128), stride_order=(1, 0)) for _ in range(2))
    w, s = fake(cutlass.BFloat16, (128,)), fake(cutlass.Float32, (2,))
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(rmsnorm, x, w, s, y, stream, options="--enable-tvm-ffi")


def solve(hidden_states, weight):
    output = torch.empty(hidden_states.shape, dtype=hidden_states.dtype)
    compiled()(hidden_states, weight, SETTINGS, output)
    return output
