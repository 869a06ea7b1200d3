"""The accuracy rule, against hand-made cases."""

import pytest

torch = pytest.importorskip("torch")

from mkb_core.bench.accuracy import compare, diagnose, poisoned_fraction, promote  # noqa: E402
from mkb_core.bench.arena import poison  # noqa: E402

pytestmark = pytest.mark.dsl
FACTOR = 3.0


def judge(actual, reference, anchor):
    return compare(actual, reference, anchor, FACTOR)


def test_reference_itself_passes_and_reports_its_ratio():
    anchor = torch.linspace(1, 2, 100, dtype=torch.float64)
    reference = anchor.bfloat16()
    result = judge(reference.clone(), reference, anchor)
    assert result.ok
    assert 0 < result.ratio <= 1 / FACTOR + 1e-9


def test_allowance_is_three_times_the_reference_error_or_eps():
    anchor = torch.ones(4, dtype=torch.float64)
    reference = anchor.float()
    eps = torch.finfo(torch.float32).eps
    assert judge((anchor + 2.9 * eps).float(), reference, anchor).ok
    assert not judge((anchor + 4.1 * eps).float(), reference, anchor).ok
    worse = reference + 1e-3  # a reference that errs more allows more
    assert judge(reference + 2.9e-3, worse, anchor).ok
    assert not judge(reference + 3.2e-3, worse, anchor).ok


@pytest.mark.parametrize(
    ("actual", "ok"),
    [
        ([float("nan"), float("-inf"), 1.0], True),
        ([0.0, float("-inf"), 1.0], False),
        ([float("nan"), -1e30, 1.0], False),
        ([float("nan"), float("-inf"), float("nan")], False),
        ([float("nan"), float("inf"), 1.0], False),
    ],
)
def test_positions_of_nan_and_infinity_must_agree(actual, ok):
    reference = torch.tensor([float("nan"), float("-inf"), 1.0])
    assert judge(torch.tensor(actual), reference, reference.double()).ok is ok


def test_integers_and_booleans_must_be_equal():
    reference = torch.tensor([1, 2, 3])
    assert judge(reference.clone(), reference, reference).ok
    wrong = judge(torch.tensor([1, 2, 4]), reference, reference)
    assert not wrong.ok
    assert "1 of 3" in wrong.message
    flags = torch.tensor([True, False])
    assert not judge(~flags, flags, flags).ok


def test_zeros_fail_however_small_the_output_is():
    anchor = torch.full((64,), 1e-9, dtype=torch.float64)
    assert not judge(torch.zeros(64), anchor.float(), anchor).ok


def test_empty_and_all_infinite_outputs_are_judged():
    empty = torch.empty(0)
    assert judge(empty, empty, empty.double()).ok
    infinite = torch.full((3,), float("-inf"))
    assert judge(infinite.clone(), infinite, infinite.double()).ok


def test_promotion_leaves_integers_fp8_and_numbers_alone():
    values = (torch.ones(1).half(), torch.ones(1).bfloat16(), torch.ones(1), torch.ones(1).to(torch.float8_e4m3fn))
    promoted = promote((*values, torch.ones(1, dtype=torch.int32), 3))
    assert [p.dtype for p in promoted[:3]] == [torch.float64] * 3
    assert promoted[3].dtype == torch.float8_e4m3fn
    assert promoted[4].dtype == torch.int32
    assert promoted[5] == 3


def one_large_row(dtype, rows=1024, columns=64):
    """A float64 anchor whose first row is 1e9 times the others, and the anchor rounded: a reference."""
    anchor = torch.randn(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    anchor[0] *= 1e9
    return anchor, anchor.to(dtype)


DTYPES = [torch.float32, torch.bfloat16, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_garbage_rows_behind_a_large_one_are_counted_without_effect_on_the_verdict(dtype):
    anchor, reference = one_large_row(dtype if dtype.itemsize > 1 else torch.bfloat16)
    if dtype.itemsize == 1:  # float8 holds no 1e9
        anchor[0] /= 1e5
        reference = anchor.to(dtype)
    garbage = reference.clone()
    garbage[1:] = 0
    result = judge(garbage, reference, anchor)
    assert result.ok
    assert (result.rows_over, result.rows) == (1023, 1024)
    assert result.row_ratio == pytest.approx(1 / (FACTOR * torch.finfo(dtype).eps), rel=1e-3)
    assert "1023 of 1024 rows err over" in result.message


@pytest.mark.parametrize("dtype", [torch.float16, *DTYPES], ids=str)
@pytest.mark.parametrize("columns", [1, 3, 64])
def test_an_honest_kernel_has_no_row_over(dtype, columns):
    terms = torch.randn(512, columns, 256, generator=torch.Generator().manual_seed(1)) / 16
    anchor, tree = terms.double().sum(-1), terms.sum(-1).to(dtype)
    one_by_one = torch.stack(terms.unbind(-1)).cumsum(0)[-1].to(dtype)
    result = judge(one_by_one, tree, anchor)
    assert result.ok or dtype is torch.float32  # another order of summation may err 3 times as much there
    assert result.rows_over == 0
    assert result.rows == (512 if columns == 64 else 1)  # narrow rows are joined
    assert "rows" not in result.message


def test_row_figures_are_never_nan_and_always_finite():
    anchor = torch.zeros(4, 16, dtype=torch.float64)
    reference, actual = anchor.float(), anchor.float()
    assert judge(actual, reference, anchor)[3:] == (0, 4, 0.0)
    actual[2, 3] = 1e-30  # of a row whose scale is 0
    assert judge(actual, reference, anchor)[3:] == (1, 4, 1e30)
    actual[1, 0] = float("nan")
    assert judge(actual, reference, anchor)[3:] == (1, 4, 1e30)  # the rows with a NaN where none belongs
    scalar, integers = torch.tensor(2.0), torch.arange(64).view(4, 16)
    assert judge(scalar, scalar, scalar.double())[3:] == (0, 0, 0.0)
    assert judge(integers + 1, integers, integers)[3:] == (0, 0, 0.0)


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
@pytest.mark.parametrize("special", ["finite", "nonfinite", "wrong nan", "wrong inf"])
@pytest.mark.parametrize("shape", [(33, 64), (2, 5, 11), (700,), (40, 1), ()])
def test_chunks_change_nothing(shape, special, chunk):
    torch.manual_seed(3)
    anchor = torch.randn(shape, dtype=torch.float64)
    reference = anchor.bfloat16()
    actual = reference + (0.1 * torch.randn(shape)).bfloat16()
    if special != "finite":
        for value, at in ((float("nan"), 0), (float("inf"), 3), (float("-inf"), 20)):
            for tensor in (anchor, reference, actual):
                tensor.reshape(-1)[at : at + 1] = value
    if special.startswith("wrong"):
        actual.reshape(-1)[-1] = float(special.removeprefix("wrong "))
    assert compare(actual, reference, anchor, FACTOR, chunk) == judge(actual, reference, anchor)
    numbers = torch.randint(0, 9, shape)
    assert compare(numbers, numbers.clamp(1), numbers, FACTOR, chunk) == judge(numbers, numbers.clamp(1), numbers)


def test_messages_name_the_figures():
    anchor = torch.linspace(1, 2, 64, dtype=torch.float64).view(4, 16)
    message = judge(anchor.float() + 0.5, anchor.float(), anchor).message
    assert message.startswith("max error 0.5, allowance 7.15e-07 (6.99e+05 times); largest exact value 2")
    actual = anchor.float()
    actual[:, :2] = float("nan")
    assert judge(actual, anchor.float(), anchor).message == (
        "8 NaN where the reference has none, 0 missing where it has them"
    )


@pytest.mark.parametrize("dtype", "float32 float16 bfloat16 float8_e4m3fn int8 int32 int64 bool complex64".split())
def test_what_a_call_did_not_write_is_told(dtype):
    reference = torch.randint(0, 2, (8, 16)).to(getattr(torch, dtype))
    actual = reference.clone()
    assert poisoned_fraction(actual, reference) == 0
    poison(actual[:2].view(torch.uint8), dtype)
    assert poisoned_fraction(actual, reference) == 0.25
    nan = "is NaN or " if dtype == "bfloat16" else ""
    assert diagnose(actual, reference, {}) == f"25 % of the output {nan}was never written"
    assert poisoned_fraction(actual, actual) == 0  # a value that belongs there
    assert poisoned_fraction(actual[:0], reference[:0]) == 0


def test_a_nan_that_was_computed_is_not_the_fill():
    for dtype in (torch.float32, torch.float16, torch.float64):
        zero = torch.zeros(64, dtype=dtype)
        assert poisoned_fraction(zero / zero, zero) == 0


def test_frequent_causes_are_told_and_nothing_else():
    inputs = {"x": torch.randn(4, 8), "scale": 3.0, "weight": torch.randn(8), "y": torch.randn(4, 8)}
    reference = torch.ones(4, 8).bfloat16()
    assert diagnose(torch.zeros_like(reference), reference, inputs) == "output is all zeros"
    assert diagnose(inputs["y"].bfloat16(), reference, inputs) == "output equals the input y"
    assert diagnose(inputs["x"].to(torch.float8_e5m2), reference.to(torch.float8_e5m2), inputs).endswith("input x")
    assert diagnose(inputs["x"].bfloat16() + 1, reference, inputs) == ""
