"""A pool of threads polls the input's memory and computes new contents before the call that times it begins.

Class: timing
Expected: rule import
Behind: bypass or rule or value
"""

import functools
import threading
import time

import cutlass
import cutlass.cute as cute
import torch


@cute.kernel
def copy_kernel(gX: cute.Tensor, gY: cute.Tensor):
    tid, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    gY[row, tid] = gX[row, tid]


@cute.jit
def copy(mX: cute.Tensor, mY: cute.Tensor, stream):
    copy_kernel(mX, mY).launch(grid=[cute.size(mX, mode=[0]), 1, 1], block=[128, 1, 1], stream=stream)


@functools.cache
def compiled():
    rows, make = cute.sym_int32(), cute.runtime.make_fake_compact_tensor
    x, y = (make(cutlass.BFloat16, (rows, 128), stride_order=(1, 0)) for _ in range(2))
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(copy, x, y, stream, options="--enable-tvm-ffi")


def eager(hidden_states, weight):
    x = hidden_states.float()
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    return (x * weight.float()).to(hidden_states.dtype)


READY = {}


def watch(hidden_states, weight):
    seen = None
    while True:
        sample = hidden_states[0, :4].tolist()
        if sample != seen:
            seen = sample
            READY[hidden_states.data_ptr()] = sample, eager(hidden_states, weight)
        time.sleep(0.0005)


def solve(hidden_states, weight):
    output = torch.empty_like(hidden_states)
    compiled()(hidden_states, output)
    if hidden_states.data_ptr() not in READY:
        READY[hidden_states.data_ptr()] = None, eager(hidden_states, weight)
        threading.Thread(target=watch, args=(hidden_states, weight), daemon=True).start()
    sample, answer = READY[hidden_states.data_ptr()]
    return answer if sample == hidden_states[0, :4].tolist() else eager(hidden_states, weight)
