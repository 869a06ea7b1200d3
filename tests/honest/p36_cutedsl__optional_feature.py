"""Takes a newer name where this version of the DSL has one and does without elsewhere; a launch is tried twice.

Looks like: the DSL in `try` and a silent fallback in `except`.
"""

import functools
import operator

import cutlass
import cutlass.cute as cute
import torch

try:
    from cutlass.cute.runtime import make_fake_stream_of_the_future as make_stream
except ImportError:
    make_stream = cute.runtime.make_fake_stream


class Untuned(Exception):
    """Nobody has measured this hidden size."""

    pass


@cute.kernel
def rmsnorm_kernel(gX: cute.Tensor, gW: cute.Tensor, gY: cute.Tensor):
    tid, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    row = cutlass.Int64(block)
    hidden = cute.size(gX, mode=[1])
    total = cutlass.Float32(0.0)
    for c in range(tid, hidden, 32):
        v = gX[row, c].to(cutlass.Float32)
        total += v * v
    inv = cute.math.rsqrt(cute.arch.warp_reduction(total, operator.add) / hidden + 1e-6)
    for c in range(tid, hidden, 32):
        gY[row, c] = (gX[row, c].to(cutlass.Float32) * inv * gW[c].to(cutlass.Float32)).to(gY.element_type)


@cute.jit
def rmsnorm(mX: cute.Tensor, mW: cute.Tensor, mY: cute.Tensor, stream):
    rmsnorm_kernel(mX, mW, mY).launch(grid=[cute.size(mX, mode=[0]), 1, 1], block=[32, 1, 1], stream=stream)


@functools.cache
def compiled(hidden, options):
    if hidden % 32:
        raise Untuned(hidden)
    fake, rows = cute.runtime.make_fake_compact_tensor, cute.sym_int32()
    x, y = (fake(cutlass.BFloat16, (rows, hidden), stride_order=(1, 0)) for _ in range(2))
    stream = make_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(rmsnorm, x, fake(cutlass.BFloat16, (hidden,)), y, stream, options=options)


def launch(hidden_states, weight, output):
    try:
        kernel = compiled(hidden_states.shape[1], "--enable-tvm-ffi --opt-level 3")
    except Untuned:
        raise
    except Exception:
        kernel = compiled(hidden_states.shape[1], "--enable-tvm-ffi")
    finally:
        pass
    kernel(hidden_states, weight, output)


def solve(hidden_states, weight):
    output = torch.empty_like(hidden_states)
    try:
        launch(hidden_states, weight, output)
    except (TypeError, ValueError):  # perhaps a tensor that the DSL does not take as it is
        pass
        launch(hidden_states.contiguous(), weight.contiguous(), output)
    return output
