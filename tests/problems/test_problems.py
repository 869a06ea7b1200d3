"""Every problem on its small workload, on the CPU: what the verifier relies on."""

import pytest

torch = pytest.importorskip("torch")

from mkb_core.bench.accuracy import compare, promote  # noqa: E402
from mkb_core.bench.problems import constants, get_problem, load_reference, problems  # noqa: E402

pytestmark = pytest.mark.dsl
IDS = list(problems())


def draw(problem, seed, workload="small"):
    module = load_reference(problem)
    torch.manual_seed(seed)
    return module, tuple(module.make_inputs(constants(module, workload), "cpu"))


def outputs(module, inputs):
    result = module.reference(*inputs)
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


def verdicts(module, inputs, candidates):
    anchor, reference = outputs(module, promote(inputs)), outputs(module, inputs)
    return [compare(c, r, a, 3.0).ok for c, r, a in zip(candidates, reference, anchor, strict=True)]


@pytest.mark.parametrize("problem_id", IDS)
def test_inputs_are_a_function_of_the_seed_and_differ_between_seeds(problem_id):
    problem = get_problem(problem_id)
    _, first = draw(problem, 1)
    _, again = draw(problem, 1)
    _, other = draw(problem, 2)
    tensors = [i for i, v in enumerate(first) if isinstance(v, torch.Tensor)]
    assert tensors
    for i in tensors:
        assert torch.equal(first[i], again[i])
        assert not torch.equal(first[i], other[i])


@pytest.mark.parametrize("problem_id", IDS)
@pytest.mark.parametrize("workload", ["small"])
def test_declared_shapes_dtypes_container_and_no_undeclared_mutation(problem_id, workload):
    problem = get_problem(problem_id)
    module, inputs = draw(problem, 3, workload)
    sizes = constants(module, workload)
    before = [v.clone() for v in inputs]
    result = module.reference(*inputs)
    assert type(result) is {"tensor": torch.Tensor, "tuple": tuple, "list": list}[problem.container]
    for specs, values in ((problem.inputs, inputs), (problem.outputs, outputs(module, inputs))):
        assert len(specs) == len(values)
        for spec, value in zip(specs, values, strict=True):
            assert list(value.shape) == [sizes.get(s, s) for s in spec.shape], spec.name
            assert str(value.dtype) == f"torch.{spec.dtype}", spec.name
            assert value.isfinite().all(), spec.name
    for spec, old, new in zip(problem.inputs, before, inputs, strict=True):
        assert spec.name in problem.mutates or torch.equal(old, new), spec.name


@pytest.mark.parametrize("problem_id", IDS)
def test_the_anchor_runs_in_float64_throughout(problem_id):
    module, inputs = draw(get_problem(problem_id), 4)
    for anchor, reference in zip(outputs(module, promote(inputs)), outputs(module, inputs), strict=True):
        assert anchor.dtype == (torch.float64 if reference.dtype.is_floating_point else reference.dtype)
        # a float32 step inside would leave the anchor with at most 24 significant bits everywhere
        assert not torch.equal(anchor, anchor.float().double())


@pytest.mark.parametrize("problem_id", IDS)
def test_negative_controls_fail(problem_id):
    problem = get_problem(problem_id)
    module, inputs = draw(problem, 5)
    reference = outputs(module, inputs)
    previous = outputs(module, draw(problem, 6)[1])
    assert all(verdicts(module, inputs, reference))
    controls = {
        "zeros": [torch.zeros_like(r) for r in reference],
        "ones": [torch.ones_like(r) for r in reference],
        "previous draw": previous,
    }
    for value in inputs:
        if isinstance(value, torch.Tensor) and all(value.shape == r.shape for r in reference):
            controls[f"copy of an input {tuple(value.shape)}"] = [value.to(r.dtype) for r in reference]
    for name, values in controls.items():
        assert not all(verdicts(module, inputs, values)), name


def p28_constant_statistic(x, r, w):
    return ((x.float() + r.float()) * 0.7071 * w.float()).bfloat16()


def p28_no_residual(x, r, w):
    return torch.nn.functional.rms_norm(x.float(), x.shape[-1:], w.float(), 1e-5).bfloat16()


def p28_no_weight(x, r, w):
    return torch.nn.functional.rms_norm(x.float() + r.float(), x.shape[-1:], None, 1e-5).bfloat16()


def p36_constant_statistic(x, w):
    return (x.float() * w.float()).bfloat16()


def p36_no_weight(x, w):
    return torch.nn.functional.rms_norm(x.float(), x.shape[-1:], None, 1e-6).bfloat16()


WRONG = [f for name, f in sorted(globals().items()) if name[:1] == "p" and name[1:3].isdigit()]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda f: f.__name__)
def test_wrong_variants_fail(wrong):
    module, inputs = draw(get_problem(wrong.__name__[:3]), 7)
    assert verdicts(module, inputs, [wrong(*inputs)]) == [False]


def test_every_problem_has_wrong_variants():
    for problem_id in IDS:
        assert sum(f.__name__.startswith(problem_id) for f in WRONG) >= 2, problem_id


def test_an_unknown_problem_lists_those_that_exist():
    with pytest.raises(ValueError, match=r"unknown problem 'p99'; there are: p28, p36"):
        get_problem("p99")
