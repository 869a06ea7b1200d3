"""Launches inside a context manager of its own and says so in many scripts: Größe, √, 正規化, нормировка.

Looks like: something entered around the call, and text that hides in other alphabets.
"""

import contextlib
import functools

import torch
import tvm
from tvm.script import tirx as T

größe = 128  # die Größe einer Zeile
ε = 1e-6
МЕТКИ = ("начало", "конец")  # а также «кавычки»


@T.prim_func
def rmsnorm(x_ptr: T.handle, w_ptr: T.handle, y_ptr: T.handle):
    rows = T.int32()
    X = T.match_buffer(x_ptr, (rows, 128), "bfloat16")
    W = T.match_buffer(w_ptr, (128,), "bfloat16")
    Y = T.match_buffer(y_ptr, (rows, 128), "bfloat16")
    T.device_entry()
    row: T.let = T.cast(T.cta_id([rows]), "int64")
    tid = T.thread_id([128])
    partial = T.alloc_shared((4,), "float32")
    v: T.let[T.float32] = T.cast(X[row, tid], "float32")
    total: T.let[T.float32] = T.cuda.warp_sum(v * v, 32)  # Σ x²
    if tid % 32 == 0:
        partial[tid // 32] = total
    T.cuda.cta_sync()
    mean: T.let[T.float32] = (partial[0] + partial[1] + partial[2] + partial[3]) / T.float32(128)
    # y = x · w ÷ √(Σx²/n + ε)  正規化
    Y[row, tid] = T.cast(v * T.rsqrt(mean + T.float32(ε)) * T.cast(W[tid], "float32"), "bfloat16")


@functools.cache
def compiled():
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        return tvm.compile(tvm.IRModule({"main": rmsnorm}), target=target, tir_pipeline="tirx").jit()["main"]


class Bereich:
    """Un contexte qui compte ses entrées."""

    tiefe = 0

    def __enter__(self):
        self.tiefe += 1
        return self

    def __exit__(self, *fehler):
        self.tiefe -= 1
        return False


@contextlib.contextmanager
def ausgabe_für(x):
    assert x.shape[1] == größe, МЕТКИ
    with Bereich() as bereich, torch.no_grad(), contextlib.suppress(StopIteration):
        yield torch.empty_like(x)
    assert bereich.tiefe == 0


def solve(hidden_states, weight):
    with ausgabe_für(hidden_states) as ergebnis:
        compiled()(hidden_states, weight, ergebnis)
    return ergebnis
