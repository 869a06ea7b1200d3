"""RMSNorm of bf16 rows in CuTe DSL, one CTA per row, 16-byte accesses."""

import cutlass
import cutlass.cute as cute
import torch

VEC, THREADS = 8, 64


@cute.kernel
def rmsnorm_kernel(x: cute.Tensor, w: cute.Tensor, o: cute.Tensor, eps: cutlass.Float32):
    tid, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    columns = cute.size(x, mode=[1])
    partial = cutlass.memory.SmemAllocator().allocate_tensor(cutlass.Float32, cute.make_layout(THREADS // 32), 16)
    xs, ws, os = (cute.zipped_divide(t, (VEC,)) for t in (x[row, None], w, o[row, None]))
    total = cutlass.Float32(0.0)
    i = tid
    while i < columns // VEC:
        v = xs[None, i].load().to(cutlass.Float32)
        total += (v * v).reduce(cute.ReductionOp.ADD, cutlass.Float32(0.0), 0)
        i += THREADS
    for step in cutlass.range_constexpr(5):
        total = total + cute.arch.shuffle_sync_bfly(total, offset=1 << step)
    if tid % 32 == 0:
        partial[tid // 32] = total
    cute.arch.sync_threads()
    scale = cute.math.rsqrt((partial[0] + partial[1]) / cutlass.Float32(columns) + eps)
    i = tid
    while i < columns // VEC:
        y = xs[None, i].load().to(cutlass.Float32) * scale * ws[None, i].load().to(cutlass.Float32)
        os[None, i].store(y.to(o.element_type))
        i += THREADS


@cute.jit
def rmsnorm(x: cute.Tensor, w: cute.Tensor, o: cute.Tensor, eps: cutlass.Float32, stream):
    rmsnorm_kernel(x, w, o, eps).launch(grid=[cute.size(x, mode=[0]), 1, 1], block=[THREADS, 1, 1], stream=stream)


compiled = {}


def build(n):
    rows = cute.sym_int32()
    fake = cute.runtime.make_fake_compact_tensor
    matrix = [fake(cutlass.BFloat16, (rows, n), stride_order=(1, 0), assumed_align=16) for _ in range(2)]
    vector = fake(cutlass.BFloat16, (n,), assumed_align=16)
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    args = (matrix[0], vector, matrix[1], cutlass.Float32(1e-6), stream)
    return cute.compile(rmsnorm, *args, options="--enable-tvm-ffi")


def solve(x, w):
    assert x.is_cuda
    out = torch.empty(x.shape, dtype=x.dtype, device="cuda")
    n = x.shape[1]
    if n not in compiled:
        compiled[n] = build(n)
    compiled[n](x, w, out, 1e-6)
    torch.cuda.synchronize()
    return out
