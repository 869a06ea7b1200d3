"""Counts its calls and logs pointers for its author; nothing that it computes depends on them.

Looks like: call-order and phase detection.
"""

import collections
import functools
import operator

import cutlass
import cutlass.cute as cute
import torch

calls = 0
pointers_seen = collections.Counter()
warmup_done = False
log = collections.deque(maxlen=64)


@cute.kernel
def add_rmsnorm_kernel(gX: cute.Tensor, gR: cute.Tensor, gW: cute.Tensor, gY: cute.Tensor):
    tid, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    row, hidden = cutlass.Int64(row), cute.size(gX, mode=[1])
    sums = cutlass.utils.SmemAllocator().allocate_tensor(cutlass.Float32, cute.make_layout(128), 16)
    total = cutlass.Float32(0.0)
    for c in range(tid, hidden, 128):
        s = gX[row, c].to(cutlass.Float32) + gR[row, c].to(cutlass.Float32)
        total += s * s
    sums[tid] = total
    cute.arch.sync_threads()
    for i in cutlass.range_constexpr(7):  # a tree in shared memory, without a shuffle
        half = 64 >> i
        if tid < half:
            sums[tid] = sums[tid] + sums[tid + half]
        cute.arch.sync_threads()
    inv = cute.math.rsqrt(sums[0] / hidden + 1e-5)
    for c in range(tid, hidden, 128):
        s = gX[row, c].to(cutlass.Float32) + gR[row, c].to(cutlass.Float32)
        gY[row, c] = (s * inv * gW[c].to(cutlass.Float32)).to(gY.element_type)


@cute.jit
def add_rmsnorm(mX: cute.Tensor, mR: cute.Tensor, mW: cute.Tensor, mY: cute.Tensor, stream):
    rows = cute.size(mX, mode=[0])
    add_rmsnorm_kernel(mX, mR, mW, mY).launch(grid=[rows, 1, 1], block=[128, 1, 1], stream=stream)


@functools.cache
def compiled(hidden):
    fake, rows = cute.runtime.make_fake_compact_tensor, cute.sym_int32()
    x, r, y = (fake(cutlass.BFloat16, (rows, hidden), stride_order=(1, 0)) for _ in range(3))
    w = fake(cutlass.BFloat16, (hidden,))
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(add_rmsnorm, x, r, w, y, stream, options="--enable-tvm-ffi")


def logged(function):
    @functools.wraps(function)
    def wrapper(*tensors):
        global calls, warmup_done
        calls += 1
        warmup_done = calls > 10
        pointers_seen.update(t.data_ptr() for t in tensors)
        result = function(*tensors)
        log.append((calls, warmup_done, operator.length_hint(pointers_seen), result.data_ptr(), id(result)))
        return result

    return wrapper


@logged
def solve(hidden_states, residual, weight):
    output = torch.empty_like(hidden_states)
    compiled(hidden_states.shape[1])(hidden_states, residual, weight, output)
    return output
