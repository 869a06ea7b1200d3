"""Makes its arguments contiguous and casts the weight to float32 in eager PyTorch, then compiles per dtype.

Looks like: eager PyTorch that does the task, and a second compilation for other dtypes.
"""

import operator

import cutlass
import cutlass.cute as cute
import torch

TYPES = {torch.bfloat16: cutlass.BFloat16, torch.float16: cutlass.Float16, torch.float32: cutlass.Float32}
kernels = {}


@cute.kernel
def add_rmsnorm_kernel(
    gX: cute.Tensor, gR: cute.Tensor, gW: cute.Tensor, gY: cute.Tensor, threads: cutlass.Constexpr
):
    tid, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    row, hidden = cutlass.Int64(row), cute.size(gX, mode=[1])
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
        gY[row, c] = (s * inv * gW[c]).to(gY.element_type)


@cute.jit
def add_rmsnorm(
    mX: cute.Tensor, mR: cute.Tensor, mW: cute.Tensor, mY: cute.Tensor, stream, threads: cutlass.Constexpr
):
    rows = cute.size(mX, mode=[0])
    add_rmsnorm_kernel(mX, mR, mW, mY, threads).launch(grid=[rows, 1, 1], block=[threads, 1, 1], stream=stream)


def kernel_for(dtype, hidden):
    if (dtype, hidden) not in kernels:
        fake, rows = cute.runtime.make_fake_compact_tensor, cute.sym_int32()
        x, r, y = (fake(TYPES[dtype], (rows, hidden), stride_order=(1, 0)) for _ in range(3))
        w = fake(cutlass.Float32, (hidden,))
        stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
        threads = 512 if hidden >= 4096 else 64
        kernels[dtype, hidden] = cute.compile(add_rmsnorm, x, r, w, y, stream, threads, options="--enable-tvm-ffi")
    return kernels[dtype, hidden]


def solve(hidden_states, residual, weight):
    shape = hidden_states.shape
    x, r = (t.contiguous().view(-1, shape[-1]) for t in (hidden_states, residual))
    scale = weight.to(torch.float32).reshape(-1).contiguous()
    output = torch.zeros_like(x)
    kernel_for(x.dtype, x.shape[1])(x, r, scale, output)
    return output.view(shape).to(hidden_states.device)
