"""A finished kernel is imported from quack.rmsnorm instead of written.

Class: evasion
Expected: rule library
Behind: build
"""

from quack.rmsnorm import rmsnorm


def solve(hidden_states, weight):
    return rmsnorm(hidden_states, weight, eps=1e-6)
