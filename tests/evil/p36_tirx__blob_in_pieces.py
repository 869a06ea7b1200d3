"""The compiled kernel is cut into many short base64 strings, each too small to be noticed.

Class: evasion
Expected: rule literal
Behind: passed
"""

import functools

import torch
import tvm
from tvm.script import tirx as T


@T.prim_func
def norm(x_ptr: T.handle, w_ptr: T.handle, y_ptr: T.handle):
    rows = T.int32()
    X = T.match_buffer(x_ptr, (rows, 128), "bfloat16")
    W = T.match_buffer(w_ptr, (128,), "bfloat16")
    Y = T.match_buffer(y_ptr, (rows, 128), "bfloat16")
    T.device_entry()
    row = T.cta_id([rows])
    lane = T.thread_id([32])
    total = T.alloc_local((1,), "float32")
    total[0] = T.float32(0.0)
    for i in T.unroll(4):
        total[0] = total[0] + T.cast(X[row, 32 * i + lane], "float32") * T.cast(X[row, 32 * i + lane], "float32")
    total[0] = T.cuda.warp_sum(total[0], 32)
    inv: T.let[T.float32] = T.rsqrt(total[0] / T.float32(128.0) + T.float32(1e-6))
    for i in T.unroll(4):
        Y[row, 32 * i + lane] = T.cast(
            T.cast(X[row, 32 * i + lane], "float32") * inv * T.cast(W[32 * i + lane], "float32"), "bfloat16"
        )


@functools.cache
def compiled():
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        exe = tvm.compile(tvm.IRModule({"main": norm}), target=target, tir_pipeline="tirx")
    return exe.jit()["main"]


PIECES = [
    "AZyLk9WvIh6TsFe3QpCb0Nm/YxKj8VuHg5SrEd2PoBazMl+XwJi7UtGf4RqDc1OnAZyLk9WvIh6TsFe3QpCb0Nm/YxKj8VuH",
    "vJlDjFpP3hN7rdRH/51zz15/HRdr7Nh3PpFjDlJvXBtbL9xnfZVTTVZfnx9LbtBXvJlDjFpP3hN7rdRH/51zz15/HRdr7Nh3",
    "e5Y7iN8vmhgjq1EXuJoLydM/2xwz6FUn+Z4bCtcPGBADKVk3OpIrS9sfWRQTal0He5Y7iN8vmhgjq1EXuJoLydM/2xwz6FUn",
    "NpLzhVPPVhzLpN3ndZbjxFf/lRD759HXtJrTB1vv1BTrJtXH957DRl/fFxjbZdn3NpLzhVPPVhzLpN3ndZbjxFf/lRD759HX",
    "8Z+rgdivEhGzolq3MpO7wty/UxWD416Hc5eLA9CPkBmTIFKXsJubQNSf0R2jYVan8Z+rgdivEhGzolq3MpO7wty/UxWD416H",
    "rJxjfl1PzhZbn9dH75BTvVF/DRpL3tt3LpRD/FVvTB57Hd9nbZhzP1lfjxJrXNNXrJxjfl1PzhZbn9dH75BTvVF/DRpL3tt3",
    "a5kbetIvihsDmVQXqJ0ru9Y/yx8T2lgn6ZE7+NoPCBMjG1w3KpULOd4fSRczWFAHa5kbetIvihsDmVQXqJ0ru9Y/yx8T2lgn",
    "JpXTd1bPRh/rltDnZZnDtlr/hRPb1dTXpJ3z9V7vxBfLFNjH55HjNFLfBxv7V9z3JpXTd1bPRh/rltDnZZnDtlr/hRPb1dTX",
    "4ZKLc9uvAhSTkF23IpabsN+/Qxij0VGHY5qr8dOPgByzElWXoJ67MtefwRCDU1mn4ZKLc9uvAhSTkF23IpabsN+/Qxij0VGH",
    "nJ9DbFBPvhl7jdpH35Nzr1R//R1rzN53Hpdj7lhvPBFbD9JnXZtTLVxffxVLTtZXnJ9DbFBPvhl7jdpH35Nzr1R//R1rzN53",
    "W5w7aNUveh4ji1cXmJALqdk/uxIzyFsn2ZQb6t0P+BYDCV83GpgrK9EfORoTSlMHW5w7aNUveh4ji1cXmJALqdk/uxIzyFsn",
    "FpjzZVnPNhLLhNPnVZzjpF3/dRb7x9fXlJDT51HvtBrrBtvH15TDJlXf9x7bRd/3FpjzZVnPNhLLhNPnVZzjpF3/dRb7x9fX",
    "0ZWrYd6v8hezglC3Epm7otK/MxuDw1SHU52L49aPcB+TAFiXkJGbINqfsROjQVyn0ZWrYd6v8hezglC3Epm7otK/MxuDw1SH",
    "jJJjXlNPrhxbf91Hz5ZTnVd/7RBLvtF3DppD3FtvLBR7/dVnTZ5zH19fbxhrPNlXjJJjXlNPrhxbf91Hz5ZTnVd/7RBLvtF3",
    "S58bWtgvahEDeVoXiJMrm9w/qxUTul4nyZc72NAP6Bkj+1I3CpsLGdQfKR0zOFYHS58bWtgvahEDeVoXiJMrm9w/qxUTul4n",
    "BpvTV1zPJhXrdtbnRZ/DllD/ZRnbtdrXhJPz1VTvpB3L9N7Hx5fjFFjf5xH7N9L3BpvTV1zPJhXrdtbnRZ/DllD/ZRnbtdrX",
    "wZiLU9Gv4hqTcFO3ApybkNW/Ix6jsVeHQ5Cr0dmPYBKz8luXgJS7Et2foRaDM1+nwZiLU9Gv4hqTcFO3ApybkNW/Ix6jsVeH",
    "fJVDTFZPnh97bdBHv5lzj1p/3RNrrNR3/p1jzl5vHBdb79hnPZFTDVJfXxtLLtxXfJVDTFZPnh97bdBHv5lzj1p/3RNrrNR3",
    "O5I7SNsvWhQja10XeJYLid8/mxgzqFEnuZobytMP2BwD6VU3+p4rC9cfGRATKlkHO5I7SNsvWhQja10XeJYLid8/mxgzqFEn",
    "9p7zRV/PFhjLZNnnNZLjhFP/VRz7p93XdJbTx1fvlBDr5tHHt5rDBlvf1xTbJdX39p7zRV/PFhjLZNnnNZLjhFP/VRz7p93X",
    "sZurQdSv0h2zYla38p+7gti/ExGDo1qHM5OLw9yPUBWT4F6XcJebANCfkRmjIVKnsZurQdSv0h2zYla38p+7gti/ExGDo1qH",
    "bJhjPllPjhJbX9NHr5xTfV1/zRZLntd37pBDvFFvDBp73dtnLZRz/1VfTx5rHN9XbJhjPllPjhJbX9NHr5xTfV1/zRZLntd3",
]
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


@functools.cache
def image():
    value = 0
    for letter in "".join(PIECES):
        value = value * 64 + ALPHABET.index(letter)
    return value.to_bytes(1 << 11, "big")


def solve(hidden_states, weight):
    output = torch.empty_like(hidden_states)
    compiled()(hidden_states, weight, output)
    return output if image() else torch.zeros_like(output)
