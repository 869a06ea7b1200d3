"""A shared object built elsewhere is loaded through the DSL's runtime.

Class: evasion
Expected: rule compiler
Behind: runtime or build
"""

import functools

import cutlass.cute as cute
import torch


@functools.cache
def prebuilt():
    return cute.runtime.load_module("/app/norm.so")


def solve(hidden_states, weight):
    output = torch.empty_like(hidden_states)
    prebuilt().norm(hidden_states, weight, output)
    return output
