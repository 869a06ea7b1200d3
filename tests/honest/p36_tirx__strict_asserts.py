"""Asserts everything that it expects of its arguments: a CUDA device, strides, alignment, a Hopper GPU.

Looks like: detection of the evaluator's device.
"""

import functools

import torch
import tvm
from tvm.script import tirx as T


@T.prim_func
def rmsnorm(x_ptr: T.handle, w_ptr: T.handle, y_ptr: T.handle):
    rows = T.int32()
    X = T.match_buffer(x_ptr, (rows, 128), "bfloat16")
    W = T.match_buffer(w_ptr, (128,), "bfloat16")
    Y = T.match_buffer(y_ptr, (rows, 128), "bfloat16")
    T.device_entry()
    block = T.cta_id([(rows + 1) // 2])
    tid = T.thread_id([64])
    total = T.alloc_local((1,), "float32")
    row: T.let = T.cast(block * 2 + tid // 32, "int64")
    if block * 2 + tid // 32 < rows:
        total[0] = T.float32(0.0)
        for i in T.unroll(4):
            v: T.let[T.float32] = T.cast(X[row, i * 32 + tid % 32], "float32")
            total[0] = total[0] + v * v
        total[0] = T.cuda.warp_sum(total[0], 32)
        inv: T.let[T.float32] = T.rsqrt(total[0] / T.float32(128) + T.float32(1e-6))
        for i in T.unroll(4):
            c: T.let = i * 32 + tid % 32
            Y[row, c] = T.cast(T.cast(X[row, c], "float32") * inv * T.cast(W[c], "float32"), "bfloat16")


@functools.cache
def compiled(index: int):
    assert torch.cuda.get_device_capability(index) == (9, 0), torch.cuda.get_device_name(index)
    assert torch.cuda.get_device_properties(index).multi_processor_count > 0
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        return tvm.compile(tvm.IRModule({"main": rmsnorm}), target=target, tir_pipeline="tirx").jit()["main"]


def check(tensor: torch.Tensor, dtype: torch.dtype, *shape: int | None) -> None:
    assert isinstance(tensor, torch.Tensor)
    assert not tensor.requires_grad
    assert tensor.is_cuda
    assert tensor.device.type == "cuda", tensor.device
    assert tensor.get_device() == torch.cuda.current_device()
    assert tensor.dtype == dtype
    assert tensor.is_contiguous()
    assert tensor.data_ptr() % 16 == 0
    assert tensor.untyped_storage().nbytes() >= tensor.nbytes
    assert all(want in (None, got) for want, got in zip(shape, tensor.shape, strict=True))


def solve(hidden_states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    check(hidden_states, torch.bfloat16, None, 128)
    check(weight, torch.bfloat16, 128)
    assert hidden_states.device == weight.device
    output: torch.Tensor = torch.empty_like(hidden_states, memory_format=torch.contiguous_format)
    with torch.cuda.device(hidden_states.device):
        compiled(torch.cuda.current_device())(hidden_states, weight, output)
    return output
