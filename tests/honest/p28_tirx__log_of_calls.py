"""A decorator class counts calls, shapes and seconds on events for its author and warns now and then.

Looks like: call-order and phase detection.
"""

import collections
import functools
import warnings

import torch
import tvm
from tvm.script import tirx as T


class Logged:
    """A function that remembers how it was called, and nothing of what it returned."""

    def __init__(self, function):
        functools.update_wrapper(self, function)
        self.function, self.history, self.events = function, collections.Counter(), collections.deque(maxlen=8)

    def __call__(self, *tensors):
        phase = "warmup" if self.history.total() < 10 else "timed"
        self.history[phase, *tensors[0].shape] += 1
        if self.history.total() % 7 == 0:
            warnings.warn(f"{phase}: {self.history.total()} calls", RuntimeWarning, stacklevel=2)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        result = self.function(*tensors)
        end.record()
        self.events.append((start, end))
        return result


def make(hidden):
    @T.prim_func
    def add_rmsnorm(x_ptr: T.handle, r_ptr: T.handle, w_ptr: T.handle, y_ptr: T.handle):
        rows = T.int32()
        X = T.match_buffer(x_ptr, (rows, hidden), "bfloat16")
        R = T.match_buffer(r_ptr, (rows, hidden), "bfloat16")
        W = T.match_buffer(w_ptr, (hidden,), "bfloat16")
        Y = T.match_buffer(y_ptr, (rows, hidden), "bfloat16")
        T.device_entry()
        row: T.let = T.cast(T.cta_id([rows]), "int64")
        warp, lane = T.warp_id([2]), T.lane_id([32])
        s = T.alloc_shared((hidden,), "float32")
        both = T.alloc_shared((2,), "float32")
        total = T.alloc_local((1,), "float32")
        total[0] = T.float32(0.0)
        for i in T.serial(hidden // 64):
            c: T.let = (i * 2 + warp) * 32 + lane
            s[c] = T.cast(X[row, c], "float32") + T.cast(R[row, c], "float32")
            total[0] = total[0] + s[c] * s[c]
        total[0] = T.cuda.warp_sum(total[0], 32)
        if lane == 0:
            both[warp] = total[0]
        T.cuda.cta_sync()
        inv: T.let[T.float32] = T.rsqrt((both[0] + both[1]) / T.float32(hidden) + T.float32(1e-5))
        for i in T.serial(hidden // 64):
            c: T.let = (i * 2 + warp) * 32 + lane
            Y[row, c] = T.cast(s[c] * inv * T.cast(W[c], "float32"), "bfloat16")

    return add_rmsnorm


@functools.cache
def compiled(hidden):
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        return tvm.compile(tvm.IRModule({"main": make(hidden)}), target=target, tir_pipeline="tirx").jit()["main"]


@Logged
def solve(hidden_states, residual, weight):
    output = torch.empty_like(hidden_states)
    compiled(hidden_states.shape[1])(hidden_states, residual, weight, output)
    return output
