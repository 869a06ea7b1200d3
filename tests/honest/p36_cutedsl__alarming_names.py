"""Names from the vocabulary of cheats, each for an innocent thing: a graph of lanes, a replay of rows, a seed.

Looks like: CUDA graph replay, seed use and a bypass, by the names of its functions and variables.
"""

import functools
import operator

import cutlass
import cutlass.cute as cute
import torch

seed = 0.0  # what a sum starts from
graph = (1, 2, 4, 8, 16)  # distances of the butterfly exchange
replay = 2  # rows that a warp normalises one after the other


@cute.kernel
def capture(gX: cute.Tensor, gW: cute.Tensor, gY: cute.Tensor):
    lane, warp, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    cache = cute.make_rmem_tensor(4, cutlass.Float32)
    first = (block * 4 + warp) * replay
    for i in cutlass.range_constexpr(replay):
        row = cutlass.Int64(first + i)
        if row < cute.size(gX, mode=[0]):
            total = cutlass.Float32(seed)
            for j in cutlass.range_constexpr(4):
                cache[j] = gX[row, lane + 32 * j].to(cutlass.Float32)
                total += cache[j] * cache[j]
            for node in cutlass.range_constexpr(len(graph)):
                total += cute.arch.shuffle_sync_bfly(total, offset=graph[node])
            inv = cute.math.rsqrt(total / 128 + 1e-6)
            for j in cutlass.range_constexpr(4):
                bypass = gW[lane + 32 * j].to(cutlass.Float32)
                gY[row, lane + 32 * j] = (cache[j] * inv * bypass).to(gY.element_type)


@cute.jit
def exec_plan(mX: cute.Tensor, mW: cute.Tensor, mY: cute.Tensor, stream):
    rows = cute.size(mX, mode=[0])
    capture(mX, mW, mY).launch(grid=[cute.ceil_div(rows, 4 * replay), 1, 1], block=[32, 4, 1], stream=stream)


@functools.cache
def compile(reference="rows"):
    fake, manual_seed = cute.runtime.make_fake_compact_tensor, cute.sym_int32()
    x, y = (fake(cutlass.BFloat16, (manual_seed, 128), stride_order=(1, 0)) for _ in range(2))
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(exec_plan, x, fake(cutlass.BFloat16, (128,)), y, stream, options="--enable-tvm-ffi")


class Evaluator:
    """Not the evaluator: this one evaluates the norm."""

    cheat = hack = skip_check = False
    expected_output = staticmethod(torch.empty_like)

    def jit(self, hidden_states, weight):
        answer = self.expected_output(hidden_states)
        compile()(hidden_states, weight, answer)
        return answer


def solve(hidden_states, weight):
    return functools.reduce(operator.matmul, ()) if Evaluator.cheat else Evaluator().jit(hidden_states, weight)
