"""Runs in a process of its own: `drive.py DSL` installs the emulated device and prints what it saw as JSON."""

import functools
import importlib.util
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from mkb_core import emulator

DSL = sys.argv[1]
device = emulator.install(DSL)

import torch  # noqa: E402

PROBLEMS = Path(__file__).parents[3] / "problems" / "mlp_norm"
facts: dict[str, object] = {"dsl": DSL}


def load(path):
    spec = importlib.util.spec_from_file_location(f"kernel_{len(sys.modules)}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def solution(problem):
    return load(next(PROBLEMS.glob(f"{problem}_*")) / "solutions" / f"{DSL}.py")


def case(problem, rows, columns):
    generator = torch.Generator().manual_seed(rows)
    shapes = {"p28": [(rows, columns)] * 2 + [(columns,)], "p36": [(rows, columns), (columns,)]}[problem]
    arguments = [torch.randn(shape, generator=generator).bfloat16() for shape in shapes]
    total = sum(argument.double() for argument in arguments[:-1])
    scale = torch.rsqrt(total.pow(2).mean(1, keepdim=True) + {"p28": 1e-5, "p36": 1e-6}[problem])
    return arguments, total * scale * arguments[-1].double()


def error(out, reference):
    return float((out.double() - reference).norm() / reference.norm())


def accuracy():
    for problem, shapes in {
        "p28": [(29, 64), (1, 64), (3, 4096)],
        "p36": [(96, 128), (29, 128), (1, 128)],
    }.items():
        solve = solution(problem).solve
        for rows, columns in shapes:
            arguments, reference = case(problem, rows, columns)
            solve(*arguments)
            device.reset()
            start = time.perf_counter()
            out = solve(*arguments)
            yield problem, rows, columns, error(out, reference), time.perf_counter() - start, len(device.launches)


facts["accuracy"] = list(accuracy())

# warps in random order, and a row that leaves some threads idle
rmsnorm = load(Path(__file__).parent / f"{'cute' if DSL == 'cutedsl' else 'tirx'}_rmsnorm.py")
device.seed = 1
for name, run, shape in (("seeded", solution("p28").solve, (2, 64)), ("idle", rmsnorm.solve, (3, 1048))):
    arguments, reference = case("p28" if name == "seeded" else "p36", *shape)
    facts[name] = error(run(*arguments), reference)
device.seed = None

# a launch gives its tensors away, in the order of the kernel's parameters (TVM has its own)
solve = solution("p28").solve
arguments, reference = case("p28", 29, 64)
device.reset()
out = solve(*arguments)
(launch,) = device.launches
facts["pointers"] = [launch.pointers.index(t.data_ptr()) for t in (*arguments, out)]
residual, weight, output = facts["pointers"][1:]
facts["launch"] = [launch.grid, launch.block, launch.skipped, launch.steps > 50]

# suppressed: recorded, the output untouched; with a copy, it holds the chosen input
kept, empty_like = torch.full_like(out, 7.0), torch.empty_like
torch.empty_like = lambda like: kept
device.reset()
device.suppress = True
solve(*arguments)
facts["suppressed"] = [bool((kept == 7).all()), [(x.skipped, x.steps) for x in device.launches]]
nbytes = kept.nbytes
for name, copy in {
    "copied": (residual, output, nbytes),
    "same": (output, output, nbytes),
    "beyond": (residual, 4, nbytes),
    "short": (weight, output, nbytes),  # the weight is shorter
}.items():
    kept.fill_(7.0)
    device.copy = copy
    solve(*arguments)
    facts[name] = [
        "untouched" if (kept == 7).all() else next((i for i, a in enumerate(arguments) if a.equal(kept)), "part")
    ]
device.suppress, device.copy = False, None
solve(*arguments)
facts["resumed"] = error(kept, reference) < 4e-3
torch.empty_like = empty_like

# two kernels of one name in one process, compiled before either runs
with tempfile.TemporaryDirectory() as folder:
    text = (Path(__file__).parent / f"{'cute' if DSL == 'cutedsl' else 'tirx'}_add.py").read_text()
    built = []
    for step in (1.0, 3.0):
        path = Path(folder) / f"add{step}.py"
        path.write_text(text.replace("STEP = 1.0", f"STEP = {step}"))
        module = load(path)
        built.append((module, module.build()))
    x = torch.arange(32, dtype=torch.float32)
    device.reset()
    facts["same_name"] = [float((module.solve(function, x) - x).unique()) for module, function in built * 2]
    facts["names"] = len({launch.kernel for launch in device.launches})


# what goes wrong is kept in the device; the DSL raises something of its own
def failure(call):
    device.reset()
    try:
        call()
    except Exception as error:
        return [type(error).__name__, type(device.error).__name__, str(device.error), len(device.launches)]
    return ["nothing raised"]


if DSL == "cutedsl":
    import cute_double

    x = torch.arange(64, dtype=torch.float32, device="cuda:0")
    facts["direct"] = bool((cute_double.solve(x) == 2 * x).all())
    facts["fault"] = failure(lambda: cute_double.solve(x, 1))
    facts["after"] = bool((cute_double.solve(x) == 2 * x).all())
else:
    import tirx_wgmma

    x = torch.arange(32, dtype=torch.float32)
    executable = built[0][1]
    for name, function in {
        "call": executable,
        "jit": executable.jit()["main"],
        "item": executable["main"],
    }.items():
        facts[name] = bool((built[0][0].solve(function, x) == x + 1).all())
    facts["shape"] = failure(lambda: executable(x, torch.empty(31)))
    facts["fault"] = failure(lambda: tirx_wgmma.solve(torch.zeros(128)))
    facts["after"] = bool((built[0][0].solve(executable, x) == x + 1).all())

# torch looks like CUDA
x = torch.zeros(3, device=torch.device("cuda"))
facts["devices"] = [str(t.device) for t in (x, x.cuda().to("cuda:0"), x.new_empty(2, device="cuda"))]
cuda = torch.cuda
with cuda.device(0), cuda.stream(cuda.Stream()), torch.device("cuda"):
    cuda.synchronize()
    facts["context"] = str(torch.empty(2).device)
facts["cuda"] = [
    x.is_cuda,
    cuda.is_available(),
    cuda.device_count(),
    cuda.get_device_capability(),
    cuda.get_device_properties(0).multi_processor_count,
    cuda.current_stream().cuda_stream,
]
module, function = built[0]
try:
    module.solve(function, torch.zeros(32).to_sparse())
    facts["sparse"] = "nothing raised"
except Exception as problem:
    facts["sparse"] = type(problem).__name__
buffer = torch.frombuffer(bytearray(range(8)), dtype=torch.uint8)
facts["trusted"] = [torch.empty_like(buffer).copy_(buffer).tolist(), repr(buffer[:2]), x.numpy().tolist()]


# a child of fork with directories of its own compiles and runs; the parent sees none of its launches
def child(folder):
    for name, sub in (
        ("TMPDIR", "tmp"),
        ("HOME", "home"),
        ("CUTE_DSL_CACHE_DIR", "c"),
        ("CUTE_DSL_DUMP_DIR", "d"),
    ):
        path = Path(folder) / sub
        path.mkdir()
        os.environ[name] = str(path)
    arguments, reference = case("p36", 5, 64)  # a width that was not compiled yet
    return error(solution("p36").solve(*arguments), reference) < 4e-3 and len(device.launches) == 1


device.reset()
with tempfile.TemporaryDirectory() as folder:
    pid = os.fork()
    if pid == 0:
        os._exit(0 if child(folder) else 1)
    facts["fork"] = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), len(device.launches)]
print(json.dumps(facts))
