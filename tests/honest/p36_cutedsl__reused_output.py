"""The output buffer is allocated once per shape and written again by every call, which is right when it returns.

Looks like: returns the tensor of an earlier call.
"""

import functools
import operator

import cutlass
import cutlass.cute as cute
import torch

LAST_OUTPUT = {}
GROUP = 16  # lanes that share a row


@cute.kernel
def rmsnorm_kernel(gX: cute.Tensor, gW: cute.Tensor, gY: cute.Tensor):
    tid, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    rows = cute.size(gX, mode=[0])
    lane = tid % GROUP
    row = block * 8 + tid // GROUP
    source = cutlass.Int64(cutlass.min(row, rows - 1))  # every lane stays alive for the shuffles
    x = cute.zipped_divide(gX[source, None], (8,))
    xf = cute.make_rmem_tensor(8, gX.element_type)
    wf = cute.make_rmem_tensor(8, gW.element_type)
    cute.autovec_copy(x[None, lane], xf)
    cute.autovec_copy(cute.zipped_divide(gW, (8,))[None, lane], wf)
    v = xf.load().to(cutlass.Float32)
    total = (v * v).reduce(cute.ReductionOp.ADD, cutlass.Float32(0.0), 0)
    total = cute.arch.warp_reduction(total, operator.add, threads_in_group=GROUP)
    inv = cute.math.rsqrt(total / 128 + 1e-6)
    yf = cute.make_rmem_tensor(8, gY.element_type)
    yf.store((v * inv * wf.load().to(cutlass.Float32)).to(gY.element_type))
    if row < rows:
        cute.autovec_copy(yf, cute.zipped_divide(gY[source, None], (8,))[None, lane])


@cute.jit
def rmsnorm(mX: cute.Tensor, mW: cute.Tensor, mY: cute.Tensor, stream):
    grid = cute.ceil_div(cute.size(mX, mode=[0]), 8)
    rmsnorm_kernel(mX, mW, mY).launch(grid=[grid, 1, 1], block=[128, 1, 1], stream=stream)


@functools.cache
def compiled():
    def fake(*shape, **layout):
        return cute.runtime.make_fake_compact_tensor(cutlass.BFloat16, shape, assumed_align=16, **layout)

    rows = cute.sym_int32()
    x, y = (fake(rows, 128, stride_order=(1, 0)) for _ in range(2))
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(rmsnorm, x, fake(128), y, stream, options="--enable-tvm-ffi")


def solve(hidden_states, weight):
    if hidden_states.shape not in LAST_OUTPUT:
        LAST_OUTPUT[hidden_states.shape] = torch.empty_like(hidden_states)
    output = LAST_OUTPUT[hidden_states.shape]
    compiled()(hidden_states, weight, output)
    return output
