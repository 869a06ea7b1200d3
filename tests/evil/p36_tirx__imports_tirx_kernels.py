"""A finished kernel is imported from tirx_kernels instead of written.

Class: evasion
Expected: rule library
Behind: build
"""

import tirx_kernels


def solve(hidden_states, weight):
    return tirx_kernels.rmsnorm(hidden_states, weight, 1e-6)
