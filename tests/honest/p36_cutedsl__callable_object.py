"""`solve` is an object with state: its compiled kernel, made at the first call, and a count of its calls.

Looks like: hidden state and call counting.
"""

import operator
from typing import ClassVar

import cutlass
import cutlass.cute as cute
import torch


class Solver:
    """A normaliser of rows of one hidden size."""

    instances: ClassVar[list] = []

    def __init__(self, hidden: int, eps: float) -> None:
        self.hidden, self.eps = hidden, eps
        self.kernel = None
        self.call_count = 0
        Solver.instances.append(self)

    def __call__(self, hidden_states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        self.call_count += 1
        if self.kernel is None:
            self.kernel = self.compile()
        output = torch.empty_like(hidden_states)
        self.kernel(hidden_states, weight, output)
        return output

    def compile(self):
        fake, rows = cute.runtime.make_fake_compact_tensor, cute.sym_int32()
        x, y = (fake(cutlass.BFloat16, (rows, self.hidden), stride_order=(1, 0)) for _ in range(2))
        w = fake(cutlass.BFloat16, (self.hidden,))
        stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
        return cute.compile(self.launch, x, w, y, stream, options="--enable-tvm-ffi")

    @cute.jit
    def launch(self, mX: cute.Tensor, mW: cute.Tensor, mY: cute.Tensor, stream):
        grid = cute.ceil_div(cute.size(mX, mode=[0]), 4)
        self.rmsnorm(mX, mW, mY).launch(grid=[grid, 1, 1], block=[32, 4, 1], stream=stream)

    @cute.kernel
    def rmsnorm(self, gX: cute.Tensor, gW: cute.Tensor, gY: cute.Tensor):
        lane, warp, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        row = cutlass.Int64(block) * 4 + warp
        if row < cute.size(gX, mode=[0]):
            total = cutlass.Float32(0.0)
            for i in cutlass.range_constexpr(self.hidden // 32):
                v = gX[row, lane + 32 * i].to(cutlass.Float32)
                total += v * v
            inv = cute.math.rsqrt(cute.arch.warp_reduction(total, operator.add) / self.hidden + self.eps)
            for i in cutlass.range_constexpr(self.hidden // 32):
                c = lane + 32 * i
                gY[row, c] = (gX[row, c].to(cutlass.Float32) * inv * gW[c].to(cutlass.Float32)).to(gY.element_type)


solve = Solver(128, 1e-6)
