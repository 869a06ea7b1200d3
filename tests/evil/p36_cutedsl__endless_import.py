"""The import of kernel.py never ends.

Class: resources
Expected: timeout
"""

TABLE = []
while True:
    TABLE = [len(TABLE)]


def solve(hidden_states, weight):
    return hidden_states
