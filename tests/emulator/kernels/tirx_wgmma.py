"""A TIRx kernel that only a GPU can run: it fences a warpgroup's matrix products."""

import tvm
from tvm.script import tirx as T


@T.prim_func
def fenced(x_ptr: T.handle):
    X = T.match_buffer(x_ptr, (128,), "float32", align=16)
    T.device_entry()
    bx = T.cta_id([1])
    tx = T.thread_id([128])
    T.ptx.wgmma.fence.sync.aligned()
    X[bx * 128 + tx] = T.float32(1.0)


def solve(x):
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        exe = tvm.compile(tvm.IRModule({"main": fenced}), target=target, tir_pipeline="tirx")
    exe(x)
    return x
