"""A shared object built elsewhere is loaded through tvm-ffi.

Class: evasion
Expected: rule compiler
Behind: runtime
"""

import functools

import torch
import tvm_ffi


@functools.cache
def prebuilt():
    return tvm_ffi.load_module("/app/norm.so")


def solve(hidden_states, weight):
    output = torch.empty_like(hidden_states)
    prebuilt().norm(hidden_states, weight, output)
    return output
