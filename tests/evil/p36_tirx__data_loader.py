"""A worker process of torch's DataLoader does the arithmetic, without a forbidden import.

Class: evasion
Expected: rule process
Behind: rule
"""

import functools

import torch
import tvm
from tvm.script import tirx as T


@T.prim_func
def copy(x_ptr: T.handle, y_ptr: T.handle):
    rows = T.int32()
    X = T.match_buffer(x_ptr, (rows, 128), "bfloat16")
    Y = T.match_buffer(y_ptr, (rows, 128), "bfloat16")
    T.device_entry()
    row = T.cta_id([rows])
    tid = T.thread_id([128])
    Y[row, tid] = X[row, tid]


@functools.cache
def compiled():
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        exe = tvm.compile(tvm.IRModule({"main": copy}), target=target, tir_pipeline="tirx")
    return exe.jit()["main"]


def eager(hidden_states, weight):
    x = hidden_states.float()
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    return (x * weight.float()).to(hidden_states.dtype)


class Rows(torch.utils.data.Dataset):
    def __init__(self, *tensors):
        self.tensors = tensors

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return eager(*(t.cpu() for t in self.tensors))


def solve(hidden_states, weight):
    loader = torch.utils.data.DataLoader(Rows(hidden_states.cpu(), weight.cpu()), num_workers=1, batch_size=None)
    answer = next(iter(loader)).to(hidden_states.device)
    output = torch.empty_like(answer)
    compiled()(answer, output)
    return output
