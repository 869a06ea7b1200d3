"""Eager PyTorch alone, no kernel at all.

Class: evasion
Expected: bypass
"""

import torch


def solve(hidden_states, weight):
    x = hidden_states.float()
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    return (x * weight.float()).to(hidden_states.dtype)
