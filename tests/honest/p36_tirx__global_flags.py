"""Sets torch's precision flags at import, although no eager product is computed, and nests its launch deeply.

Looks like: lower precision by global flags.
"""

import torch
import tvm
from tvm.script import tirx as T

torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True
torch.backends.cudnn.benchmark = True
torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
torch.set_float32_matmul_precision("medium")


def outer(hidden):
    def middle(warps):
        def inner(eps):
            @T.prim_func
            def rmsnorm(x_ptr: T.handle, w_ptr: T.handle, y_ptr: T.handle):
                rows = T.int32()
                X = T.match_buffer(x_ptr, (rows, hidden), "bfloat16")
                W = T.match_buffer(w_ptr, (hidden,), "bfloat16")
                Y = T.match_buffer(y_ptr, (rows, hidden), "bfloat16")
                T.device_entry()
                block = T.cta_id([(rows + warps - 1) // warps])
                tid = T.thread_id([warps * 32])
                total = T.alloc_local((1,), "float32")
                row: T.let = T.cast(block * warps + tid // 32, "int64")
                if block * warps + tid // 32 < rows:
                    total[0] = T.float32(0.0)
                    for i in T.serial(hidden // 64):
                        for j in T.serial(2):
                            if hidden > 0:
                                v: T.let[T.float32] = T.cast(X[row, (i * 2 + j) * 32 + tid % 32], "float32")
                                total[0] = total[0] + v * v
                    total[0] = T.cuda.warp_sum(total[0], 32)
                    inv: T.let[T.float32] = T.rsqrt(total[0] / T.float32(hidden) + T.float32(eps))
                    for i in T.serial(hidden // 32):
                        c: T.let = i * 32 + tid % 32
                        y: T.let[T.float32] = T.cast(X[row, c], "float32") * inv * T.cast(W[c], "float32")
                        Y[row, c] = T.cast(y, "bfloat16")

            return rmsnorm

        return inner

    return middle


KERNELS = {}


def solve(hidden_states, weight):
    for hidden in hidden_states.shape[1:]:
        if hidden % 64 == 0:
            for key in [(hidden, 8)]:
                if key not in KERNELS:
                    with tvm.target.Target({"kind": "cuda", "arch": "sm_90a"}) as target:
                        if target is not None:
                            module = tvm.IRModule({"main": outer(key[0])(key[1])(1e-6)})
                            built = tvm.compile(module, target=target, tir_pipeline="tirx")
                            KERNELS[key] = built.jit()["main"]
                while True:
                    output = torch.empty_like(hidden_states)
                    KERNELS[key](hidden_states, weight, output)
                    return output
    raise ValueError(f"hidden size {hidden_states.shape[1:]}")
