"""What the static rules refuse, and what they advise: the tables of rules.py."""

import sys

from mkb_core.bench.dsl import DSLS

# Ordinary Python that a kernel file needs. Files, processes, threads and foreign code are not in it.
STANDARD_MODULES = frozenset(
    "__future__ abc collections contextlib copy dataclasses enum functools itertools math numbers "
    "operator re string types typing typing_extensions warnings".split()
)
# Collections of finished kernels. A variant asks for the kernel, not for the name of one.
LIBRARIES = frozenset(
    "quack flash_attn flash_attn_interface flashinfer flash_mla deep_gemm tirx_kernels cutlass_library "
    "cutlass_api fla liger_kernel sgl_kernel vllm xformers apex transformer_engine aiter tilelang cudnn "
    "examples tvm.topi tvm.s_tir.dlight".split()
)
FORBIDDEN_BUILTINS = frozenset("exec eval open __import__ globals locals vars breakpoint memoryview".split())
REFLECTION = frozenset({"getattr", "setattr", "delattr", "hasattr"})
FORBIDDEN_NAMES = {
    "compiler": (
        "torch.compile torch.jit torch._dynamo torch._inductor torch.fx torch.export torch.utils.cpp_extension "
        "torch.cuda._compile_kernel torch.cuda.jiterator torch.library torch.ops torch.classes triton "
        "torch._C torch._native tvm.support.nvcc tvm.contrib tvm.relax tvm_ffi.cpp tvm.runtime.load_module "
        "tvm_ffi.load_module cutlass.cute.runtime.load_module cuda.bindings.nvrtc torch.onnx"
    ),
    "graph": (
        "torch.cuda.CUDAGraph torch.cuda.graph torch.cuda.graphs torch.cuda.make_graphed_callables "
        "torch.cuda.graph_pool_handle torch.cuda.is_current_stream_capturing"
    ),
    "random": (
        "torch.manual_seed torch.seed torch.initial_seed torch.random torch.get_rng_state torch.set_rng_state "
        "torch.cuda.manual_seed torch.cuda.get_rng_state torch.Generator torch.default_generator"
    ),
    # what evaluates text, or looks up attributes by a name that is text
    "dynamic": (
        "operator.attrgetter operator.methodcaller types.FunctionType types.CodeType types.MethodType "
        "torch.utils.benchmark typing_extensions.get_annotations typing_extensions.evaluate_forward_ref"
    ),
    "files": "torch.save torch.load torch.from_file torch.hub",
    "process": (
        "torch.multiprocessing torch.distributed torch.utils.data torch.utils.collect_env torch.nn.parallel "
        "torch.futures tvm.rpc"
    ),
    "raw-cuda": (
        "torch.cuda.cudart tvm.register_global_func tvm.get_global_func tvm_ffi.register_global_func "
        "tvm_ffi.get_global_func tvm.script.from_source tvm.backend tvm.ir.register_op_attr "
        "tvm.tirx.register_intrin_lowering tvm.tirx.op.register_intrin_lowering cuda.bindings.runtime "
        "cutlass._mlir cutlass.cute.ffi cutlass.cute.extern cutlass.base_dsl.ffi"
    ),
}
TORCH_UTILS = frozenset({"dlpack", "checkpoint"})  # what a kernel may use of torch.utils
# methods and functions known by their last name, whatever object they are reached through
FORBIDDEN_ATTRIBUTES = {
    "raw-cuda": frozenset(
        "call_extern call_pure_extern call_kernel call_cpacked cuda_func_call func_call source_code "
        "call_llvm_intrin iket_official_event official_event pragma_import_c inline_asm inline_ptx import_module "
        "compile_cuda load_inline register_global_func get_global_func register_intrin_lowering register_op_attr "
        "register_codegen device_intrinsic CODEGEN_REGISTRY BitCode CUDAPluggableAllocator".split()
    ),
    # modules that other modules hold as attributes
    "import": frozenset(
        "os sys ctypes subprocess builtins bltns importlib gc inspect threading socket shutil".split()
    ),
    "files": frozenset("from_file UntypedStorage TypedStorage frombuffer serialization package".split()),
    "dynamic": frozenset("attrgetter methodcaller get_type_hints ForwardRef Formatter get_field vformat".split()),
    "modes": frozenset(
        "TorchFunctionMode TorchDispatchMode overrides _python_dispatch __torch_function__ "
        "__torch_dispatch__".split()
    ),
    "introspection": frozenset(
        "__globals__ __code__ __closure__ __subclasses__ __bases__ __mro__ __builtins__ __loader__ "
        "__spec__ __file__ __cached__ __annotations__ __import__ __dict__ __getattribute__ "
        "__reduce__ __reduce_ex__ f_globals f_locals f_back gi_frame cr_frame tb_frame _getframe".split()
    ),
}
# functions of the driver's bindings, by how their names begin
FORBIDDEN_PREFIXES = {
    "cuModule": "raw-cuda",
    "cuLibrary": "raw-cuda",
    "cuLink": "raw-cuda",
    "cuLaunch": "raw-cuda",
    "nvrtcC": "raw-cuda",
    "cuGraph": "graph",
    "cuStreamBeginCapture": "graph",
}
# methods by which a runner reads what it is given; one of the tensor's own would run after the call
TENSOR_METHODS = frozenset(
    "detach data_ptr to float double cpu clone contiguous numel stride storage_offset untyped_storage "
    "element_size copy_ is_contiguous size view".split()
)
# names of operators, hooks and options that mean the same as text: to be called by, or passed on
FORBIDDEN_TEXTS = frozenset(
    "source_code pragma_import_c tirx.call_extern tirx.call_pure_extern tirx.call_llvm_intrin tirx.cuda.func_call "
    "tirx.cuda.iket_official_event tirx.call_ffi_kernel cuda.FLowerIntrinsic ffi.Module.create.cuda "
    "target.build.cuda tvm_callback_cuda_compile tvm_callback_cuda_postproc".split()
)
FOREIGN_CODE = r"(__(global|device)__\s[^;]*\(|\.(visible|func)\s+\.?\w+).*\{"  # CUDA C or PTX
# base64 or hexadecimal digits, without a space
ENCODED = r"(?=.*[0-9])((?=.*[A-Z])(?=.*[a-z])[A-Za-z0-9+/=_-]{40,}|[0-9a-fA-F]{40,})"
MAX_ENCODED = 512  # characters of these, in one file
MAX_LITERAL = 20_000
MAX_NUMBERS = 1024  # literals in one list
MAX_PARTS = 12  # of a dotted name; none of an honest kernel is longer
# operators that print or call what their argument says: the place of that argument, and what it may be
LITERAL_ARGUMENT = {
    "call_packed": (0, r"runtime\.cuTensorMapEncodeTiled"),  # the one host function that TMA needs
    "mov_sreg": (-1, r"[%a-z0-9_.]+"),
}
# each forbidden dotted name with its rule
RULE_OF = {name: rule for rule, names in FORBIDDEN_NAMES.items() for name in names.split()}
RULE_OF |= dict.fromkeys(LIBRARIES, "library")
ROOTS = frozenset({"torch", "triton", "operator", "types", *(m for d in DSLS.values() for m in d.modules)})
ADVICE = {
    "import": "use torch, the variant's DSL, or one of: " + ", ".join(sorted(STANDARD_MODULES - {"__future__"})),
    "dsl": "this variant is written in its own DSL alone",
    "library": "write the kernel yourself",
    "compiler": "write the computation in the DSL, or in eager PyTorch",
    "graph": "launch the kernels in every call; CUDA graphs are not allowed",
    "random": "a kernel is a function of its inputs",
    "files": "a kernel reads and writes nothing but tensors",
    "process": "a kernel starts no process and no thread",
    "raw-cuda": "express it in the DSL itself",
    "introspection": "name what you need directly",
    "dynamic": "write the name out",
    "modes": "write the computation in solve",
    "patch": "keep your own state in your own names",
    "literal": "compute tables at import instead",
    "solve": "define `def solve(*inputs)` at the top level of kernel.py",
}

# what modules of torch and the DSLs import for themselves, and what of these names torch has as its own
HIDDEN_MODULES = (sys.stdlib_module_names - STANDARD_MODULES | {"numpy", "np", "sympy"}) - {
    "random",
    "select",
    "signal",
    "trace",
}
