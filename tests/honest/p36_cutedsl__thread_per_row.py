"""One thread normalises one row, element by element: right, and slow.

Looks like: a kernel made to lose time.
"""

import functools

import cutlass
import cutlass.cute as cute
import torch


@cute.kernel
def rmsnorm_kernel(gX: cute.Tensor, gW: cute.Tensor, gY: cute.Tensor):
    tid, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    size, _, _ = cute.arch.block_dim()
    row = cutlass.Int64(block) * size + tid
    hidden = cute.size(gX, mode=[1])
    if row < cute.size(gX, mode=[0]):
        total = cutlass.Float32(0.0)
        c = 0
        while c < hidden:
            v = gX[row, c].to(cutlass.Float32)
            total = total + v * v
            c = c + 1
        inv = cute.math.rsqrt(total / hidden + 1e-6)
        for k in range(hidden):
            gY[row, k] = (gX[row, k].to(cutlass.Float32) * inv * gW[k].to(cutlass.Float32)).to(gY.element_type)


@cute.jit
def rmsnorm(mX: cute.Tensor, mW: cute.Tensor, mY: cute.Tensor, stream):
    grid = cute.ceil_div(cute.size(mX, mode=[0]), 64)
    rmsnorm_kernel(mX, mW, mY).launch(grid=[grid, 1, 1], block=[64, 1, 1], stream=stream)


@functools.cache
def compiled(rows, hidden):
    def fake(*shape, **layout):
        return cute.runtime.make_fake_compact_tensor(cutlass.BFloat16, shape, **layout)

    x, y = (fake(rows, hidden, stride_order=(1, 0)) for _ in range(2))
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(rmsnorm, x, fake(hidden), y, stream, options="--enable-tvm-ffi")


def solve(hidden_states, weight):
    output = torch.empty(hidden_states.shape, dtype=hidden_states.dtype, device=hidden_states.device)
    compiled(*hidden_states.shape)(hidden_states, weight, output)
    return output
