"""A small bench for hand-written PTX."""

import numpy as np
import pytest

from mkb_core.emulator.interpreter import launch
from mkb_core.emulator.lanes import Shape
from mkb_core.emulator.memory import GlobalMemory
from mkb_core.emulator.program import Program
from mkb_core.emulator.ptx import parse

HEAD = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry k({params}) {{
    .reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<20>; .reg .b64 %d<20>; .reg .f32 %f<9>;
    {loads}
    {body}
}}
"""


@pytest.fixture
def run():
    """Run a body of PTX on arrays; %d1, %d2, ... hold their addresses, %r1 the thread's number in its block."""

    def go(body, *arrays, block=(32, 1, 1), grid=(1, 1, 1), **options):
        params = ", ".join(f".param .u64 a{i}" for i in range(1, len(arrays) + 1))
        loads = "".join(f"ld.param.u64 %d{i}, [a{i}];" for i in range(1, len(arrays) + 1)) + "mov.u32 %r1, %tid.x;"
        kernel = parse(HEAD.format(params=params, loads=loads, body=body))["k"]
        memory = GlobalMemory()
        for array in arrays:
            memory.add(array.ctypes.data, array.nbytes)
        addresses = [array.ctypes.data.to_bytes(8, "little") for array in arrays]
        return launch(Program(kernel), Shape("k", grid, block), addresses, memory, **options)

    return go


@pytest.fixture
def aligned():
    """An array of zeros that starts at a multiple of 16."""

    def make(count, dtype):
        size = count * np.dtype(dtype).itemsize
        raw = np.zeros(size + 16, np.uint8)
        start = -raw.ctypes.data % 16
        return raw[start : start + size].view(dtype)

    return make
