"""A finished kernel is imported from flash_attn.cute instead of written.

Class: evasion
Expected: rule library
Behind: build
"""

from flash_attn.cute import interface


def solve(hidden_states, weight):
    return interface.rms_norm(hidden_states, weight)
