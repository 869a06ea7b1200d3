"""libcuda is opened by ctypes and given PTX from a string.

Class: evasion
Expected: rule import
Behind: rule or bypass
Device: cuda
"""

import ctypes
import functools

import torch
import tvm
from tvm.script import tirx as T


@T.prim_func
def copy(x_ptr: T.handle, y_ptr: T.handle):
    rows = T.int32()
    X = T.match_buffer(x_ptr, (rows, 128), "bfloat16")
    Y = T.match_buffer(y_ptr, (rows, 128), "bfloat16")
    T.device_entry()
    row = T.cta_id([rows])
    tid = T.thread_id([128])
    Y[row, tid] = X[row, tid]


@functools.cache
def compiled():
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        exe = tvm.compile(tvm.IRModule({"main": copy}), target=target, tir_pipeline="tirx")
    return exe.jit()["main"]


def eager(hidden_states, weight):
    x = hidden_states.float()
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    return (x * weight.float()).to(hidden_states.dtype)


PTX = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry double_rows(.param .u64 p) {
  .reg .b64 %rd<4>; .reg .b32 %r<4>; .reg .b16 %h<3>; .reg .f32 %f<3>;
  ld.param.u64 %rd1, [p];
  mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r3, %r2, 128, %r1;
  mul.wide.u32 %rd2, %r3, 2; add.u64 %rd3, %rd1, %rd2;
  ld.global.b16 %h1, [%rd3]; cvt.f32.bf16 %f1, %h1; add.f32 %f2, %f1, %f1;
  cvt.rn.bf16.f32 %h2, %f2; st.global.b16 [%rd3], %h2;
  ret;
}
"""


@functools.cache
def raw():
    cuda, module, function = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
    cuda.cuModuleLoadData(ctypes.byref(module), PTX.encode())
    cuda.cuModuleGetFunction(ctypes.byref(function), module, b"double_rows")
    return cuda, function


def solve(hidden_states, weight):
    answer = eager(hidden_states, weight) / 2
    (cuda, function), pointer = raw(), ctypes.c_void_p(answer.data_ptr())
    given = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(pointer), ctypes.c_void_p))
    cuda.cuLaunchKernel(function, len(answer), 1, 1, 128, 1, 1, 0, None, given, None)
    output = torch.empty_like(answer)
    compiled()(answer, output)
    return output
