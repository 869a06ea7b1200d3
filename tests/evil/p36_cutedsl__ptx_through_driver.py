"""PTX in a string is loaded by the driver functions of cuda.bindings, which CuTe DSL itself depends on.

Class: evasion
Expected: rule raw-cuda
Behind: rule or bypass or runtime
Device: cuda
"""

import functools

import cutlass
import cutlass.cute as cute
import torch
from cuda.bindings import driver


@cute.kernel
def copy_kernel(gX: cute.Tensor, gY: cute.Tensor):
    tid, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    gY[row, tid] = gX[row, tid]


@cute.jit
def copy(mX: cute.Tensor, mY: cute.Tensor, stream):
    copy_kernel(mX, mY).launch(grid=[cute.size(mX, mode=[0]), 1, 1], block=[128, 1, 1], stream=stream)


@functools.cache
def compiled():
    rows, make = cute.sym_int32(), cute.runtime.make_fake_compact_tensor
    x, y = (make(cutlass.BFloat16, (rows, 128), stride_order=(1, 0)) for _ in range(2))
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(copy, x, y, stream, options="--enable-tvm-ffi")


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
    _, module = driver.cuModuleLoadData(PTX.encode())
    return driver.cuModuleGetFunction(module, b"double_rows")[1]


def solve(hidden_states, weight):
    answer = eager(hidden_states, weight) / 2
    stream = torch.cuda.current_stream().cuda_stream
    given = ((answer.data_ptr(),), (None,))
    driver.cuLaunchKernel(raw(), len(answer), 1, 1, 128, 1, 1, 0, stream, given, 0)
    output = torch.empty_like(answer)
    compiled()(answer, output)
    return output
