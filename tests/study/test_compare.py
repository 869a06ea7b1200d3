"""Comparisons from attempts: all five cases of the scoring rule, standing, and the summary."""

import math

import pandas as pd
import pytest

from mkb_core import records
from mkb_core.config import protocol
from mkb_core.study import compare

NAN = float("nan")


def attempt(dsl, arm, passed, ms=NAN, *, problem="p28", status="run", device="cuda", model="m", eager=1.0):
    row = dict.fromkeys(records.columns("attempts"))
    speed = eager / ms if passed and not math.isnan(ms) else None
    return row | {
        "attempt": f"{model}/{problem}/{dsl}/{arm}/r1",
        "model": model,
        "problem": problem,
        "family": "mlp_norm",
        "dsl": dsl,
        "arm": arm,
        "replicate": 1,
        "status": status,
        "verdict": "passed" if passed else "value",
        "passed": passed,
        "speedup": speed,
        "kernel_ms": ms if passed else None,
        "submissions": 0,
        "fingerprint": "x",
        "device": device,
        "demo": False,
    }


def table(*rows):
    return records.frame("attempts", rows)


def one(baseline, treatment, source=True, **options):
    """The cutedsl2tirx comparison of one problem; baseline and treatment are (passed, ms)."""
    rows = compare.comparisons(
        table(
            attempt("cutedsl", "solo", source, 1.0),
            attempt("tirx", "solo", *baseline),
            attempt("tirx", "skill", *treatment, **options),
        )
    )
    assert len(rows) == 1
    return rows.iloc[0]


@pytest.mark.parametrize(
    ("baseline", "treatment", "case", "ratio"),
    [
        ((True, 2.0), (True, 1.0), "both", 2.0),
        ((True, 1.0), (True, 2.0), "both", 0.5),
        ((True, 9.0), (True, 1.0), "both", 4.0),  # clipped
        ((True, 1.0), (True, 9.0), "both", 0.25),  # clipped
        ((False,), (True, 1.0), "rescue", 4.0),
        ((True, 1.0), (False,), "break", 0.25),
        ((False,), (False,), "neither", 1.0),
    ],
)
def test_ratio_of_each_case(baseline, treatment, case, ratio):
    row = one(baseline, treatment)
    assert (row.case, row.ratio) == (case, ratio)
    assert row.direction == "cutedsl2tirx"
    assert (row.source, row.baseline, row.treatment) == (
        "m/p28/cutedsl/solo/r1",
        "m/p28/tirx/solo/r1",
        "m/p28/tirx/skill/r1",
    )


@pytest.mark.parametrize("passed", [True, False])
def test_a_skipped_treatment_scores_one_whatever_the_baseline_did(passed):
    row = one((passed, 1.0), (passed, 1.0), status="skipped")
    assert (row.case, row.ratio, row.helped, row.harmed) == ("skipped", 1.0, False, False)


@pytest.mark.parametrize(
    ("ratio", "helped", "harmed"),
    [(1.25, True, False), (1.2499, False, False), (1.0, False, False), (0.8, False, True), (0.8001, False, False)],
)
def test_thresholds_are_inclusive(ratio, helped, harmed):
    row = one((True, ratio), (True, 1.0))
    assert (row.helped, row.harmed) == (helped, harmed)


def test_both_passing_without_a_time_is_unknown_never_one():
    rows = [attempt(d, a, True, device="emulated") for d in ("cutedsl", "tirx") for a in ("solo", "skill")]
    row = compare.comparisons(table(*rows)).iloc[0]
    assert row.case == "both"
    assert math.isnan(row.ratio)
    assert not row.helped
    assert not row.harmed


@pytest.mark.parametrize(
    ("source", "baseline", "expected"),
    [
        ((True, 3.0), (True, 1.5), "above"),
        ((True, 1.6), (True, 1.4), "same"),
        ((True, 0.4), (True, 0.6), "below"),
        ((False, NAN), (True, 0.1), "below"),
        ((False, NAN), (False, NAN), "same"),
        ((True, 4.0), (True, 3.999), "above"),
        ((True, NAN), (False, NAN), "above"),
        ((True, NAN), (True, NAN), None),
    ],
)
def test_standing_compares_the_tiers(source, baseline, expected):
    tiers = [compare.tier(*side, protocol().tiers) for side in (source, baseline)]
    assert compare.standing(*tiers) == expected


def test_tiers_are_the_six_of_the_speed_ladder():
    speeds = [0.1, 0.5, 1.0, 2.0, 4.0]
    assert [compare.tier(True, s, protocol().tiers) for s in speeds] == [1, 2, 3, 4, 5]
    assert compare.tier(False, 9.0, protocol().tiers) == 0


def test_summary_counts_rates_over_what_could_be_scored_and_marks_rows():
    rows = []
    for problem, baseline, treatment in (
        ("p01", (False,), (True, 1.0)),  # 4
        ("p02", (True, 1.0), (False,)),  # 1/4
        ("p03", (True, 2.0), (True, 1.0)),  # 2
        ("p04", (True,), (True,)),  # untimed
    ):
        rows += [
            attempt("cutedsl", "solo", True, 1.0, problem=problem),
            attempt("tirx", "solo", *baseline, problem=problem),
            attempt("tirx", "skill", *treatment, problem=problem),
        ]
    cell = compare.summary(compare.comparisons(table(*rows))).iloc[0]
    assert (cell.comparisons, cell.scored) == (4, 3)
    assert cell.help_pct == pytest.approx(200 / 3)
    assert cell.harm_pct == pytest.approx(100 / 3)
    assert cell.lift_pct == pytest.approx(100 * (2 ** (1 / 3) - 1))
    assert (cell.device, cell.demo) == ("cuda", False)


def test_both_directions_and_replicates_are_kept_apart():
    rows = [attempt(d, a, True, 1.0) for d in ("cutedsl", "tirx") for a in ("solo", "skill")]
    found = compare.comparisons(table(*rows))
    assert list(found.direction) == ["cutedsl2tirx", "tirx2cutedsl"]
    second = [r | {"replicate": 2, "attempt": r["attempt"].replace("r1", "r2")} for r in rows]
    assert len(compare.comparisons(table(*rows, *second))) == 4


def test_attempts_of_two_devices_are_never_compared():
    rows = [attempt(d, "solo", True, 1.0, device="emulated") for d in ("cutedsl", "tirx")]
    assert compare.comparisons(table(*rows, attempt("tirx", "skill", True, 1.0))).empty


def test_no_attempts_give_empty_tables():
    found = compare.comparisons(table())
    assert found.empty
    assert compare.summary(found).empty
    assert isinstance(found, pd.DataFrame)
