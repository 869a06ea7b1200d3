"""The accuracy rule, against hand-made cases."""

import pytest

torch = pytest.importorskip("torch")

from mkb_core.bench.accuracy import compare, promote  # noqa: E402

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
