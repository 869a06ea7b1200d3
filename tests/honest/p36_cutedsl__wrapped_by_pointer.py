"""The DSL's views of tensors are remembered by pointer, so that a call need not wrap them again; results are not.

Looks like: memoisation of results keyed by data_ptr.
"""

import operator

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack

VIEWS = {}  # (data_ptr, shape) -> (view, tensor): the tensor is kept, so its memory cannot become another's
MEMO = {}


@cute.kernel
def rmsnorm_kernel(gX: cute.Tensor, gW: cute.Tensor, gY: cute.Tensor):
    tid, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    row = cutlass.Int64(block)
    values = cute.make_rmem_tensor(4, cutlass.Float32)
    for i in cutlass.range_constexpr(4):
        values[i] = gX[row, tid + 32 * i].to(cutlass.Float32)
    squares = values.load() * values.load()
    total = squares.reduce(cute.ReductionOp.ADD, cutlass.Float32(0.0), 0)
    total = cute.arch.warp_reduction(total, operator.add)
    inv = cute.math.rsqrt(total / cutlass.Float32(128) + cutlass.Float32(1e-6))
    for i in cutlass.range_constexpr(4):
        gY[row, tid + 32 * i] = (values[i] * inv * gW[tid + 32 * i].to(cutlass.Float32)).to(gY.element_type)


@cute.jit
def rmsnorm(mX: cute.Tensor, mW: cute.Tensor, mY: cute.Tensor, stream: cuda.CUstream):
    rmsnorm_kernel(mX, mW, mY).launch(grid=[cute.size(mX, mode=[0]), 1, 1], block=[32, 1, 1], stream=stream)


def view(tensor):
    key = (tensor.data_ptr(), tuple(tensor.shape))
    if key not in VIEWS:
        VIEWS[key] = (from_dlpack(tensor, assumed_align=16), tensor)
    return VIEWS[key][0]


def solve(hidden_states, weight):
    shape = hidden_states.shape
    if shape not in MEMO:
        MEMO[shape] = torch.empty_like(hidden_states)
    arguments = (view(hidden_states), view(weight), view(MEMO[shape]))
    stream = cuda.CUstream(torch.cuda.current_stream().cuda_stream)
    if (shape, "kernel") not in MEMO:
        MEMO[shape, "kernel"] = cute.compile(rmsnorm, *arguments, stream)
    MEMO[shape, "kernel"](*arguments, stream)
    return MEMO[shape]
