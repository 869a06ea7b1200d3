"""Comparisons: what a skill did to the outcome of a fresh attempt, always derived from the attempts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mkb_core import records
from mkb_core.config import ROOT, Protocol, protocol, unknown
from mkb_core.notebook import Parameters, shown

CASES = ("both", "rescue", "break", "neither", "skipped")
KEYS = ["model", "problem", "replicate"]
SAME = ["device", "demo"]  # rows that differ in these are never compared


def comparisons(attempts: pd.DataFrame, rules: Protocol | None = None) -> pd.DataFrame:
    """One row a comparison: model x direction x problem x replicate.

    Args:
        attempts: table `attempts`; a comparison needs its source, baseline and treatment rows of one device.
        rules: the protocol; default data/protocol.yaml.

    Returns:
        Columns model, direction, problem, family, replicate, source, baseline, treatment (attempt ids), case,
        ratio (baseline time / treatment time, clipped; null where both pass on a device that gives no time),
        helped, harmed, standing, device, demo.
    """
    rules = rules or protocol()
    solo = attempts[attempts.arm == "solo"]
    treatment = attempts[attempts.arm == "skill"]
    baseline = solo[[*KEYS, "dsl", *SAME, "attempt", "passed", "kernel_ms", "speedup"]]
    pairs = treatment.merge(baseline, on=[*KEYS, "dsl", *SAME], suffixes=("", "_baseline"))
    sources = solo.rename(columns={"dsl": "source_dsl"})
    sources = sources[[*KEYS, "source_dsl", *SAME, "attempt", "passed", "speedup"]]
    rows = pairs.merge(sources, on=[*KEYS, *SAME], suffixes=("", "_source"))
    rows = rows[rows.source_dsl != rows.dsl]
    return pd.DataFrame([_comparison(row, rules) for row in rows.to_dict("records")], columns=COLUMNS).sort_values(
        ["model", "direction", "problem", "replicate"], ignore_index=True
    )


COLUMNS = (
    "model direction problem family replicate source baseline treatment case ratio helped harmed standing "
    "device demo"
).split()


def _comparison(row: dict[Any, Any], rules: Protocol) -> dict[str, Any]:
    case = outcome(row["status"] == "skipped", row["passed_baseline"], row["passed"])
    ratio = paired_ratio(case, row["kernel_ms_baseline"], row["kernel_ms"], rules)
    source, baseline = (
        tier(row[f"passed_{part}"], row[f"speedup_{part}"], rules.tiers) for part in ("source", "baseline")
    )
    return {
        "model": row["model"],
        "direction": f"{row['source_dsl']}2{row['dsl']}",
        "problem": row["problem"],
        "family": row["family"],
        "replicate": row["replicate"],
        "source": row["attempt_source"],
        "baseline": row["attempt_baseline"],
        "treatment": row["attempt"],
        "case": case,
        "ratio": ratio,
        "helped": bool(ratio >= rules.score.helped),
        "harmed": bool(ratio <= rules.score.harmed),
        "standing": standing(source, baseline),
        "device": row["device"],
        "demo": row["demo"],
    }


def outcome(skipped: bool, baseline_passed: bool, treatment_passed: bool) -> str:
    """Which of the five cases of the scoring rule this is; a skipped treatment inherits the baseline's outcome."""
    if skipped:
        return "skipped"
    if baseline_passed and treatment_passed:
        return "both"
    if treatment_passed:
        return "rescue"
    return "break" if baseline_passed else "neither"


def paired_ratio(case: str, baseline_ms: float, treatment_ms: float, rules: Protocol) -> float:
    """Baseline time / treatment time, clipped; NaN where both pass and a time is missing."""
    low, high = rules.score.ratio_min, rules.score.ratio_max
    if case == "both":
        return float(np.clip(baseline_ms / treatment_ms, low, high))
    return {"rescue": high, "break": low, "neither": 1.0, "skipped": 1.0}[case]


def tier(passed: bool, speedup: float, tiers: Sequence[float]) -> float:
    """0 for a failed attempt, else 1 + the number of tier bounds that the speedup reaches; NaN where untimed."""
    if not passed:
        return 0.0
    return float("nan") if np.isnan(speedup) else 1.0 + sum(speedup >= bound for bound in tiers)


def standing(source: float, baseline: float) -> str | None:
    """The source's tier against the baseline's: above, same, below; None where times are missing."""
    if np.isnan(source) or np.isnan(baseline):
        passed = [t != 0 for t in (source, baseline)]
        return None if passed[0] == passed[1] else "above" if passed[0] else "below"
    return "above" if source > baseline else "same" if source == baseline else "below"


def paired_lift(ratios: "pd.Series[float]") -> float:
    """Geometric mean of the ratios minus 1; NaN for none."""
    known = ratios.dropna()
    return float(np.exp(np.log(known).mean()) - 1) if len(known) else float("nan")


def summary(rows: pd.DataFrame, by: Sequence[str] = ("model", "direction")) -> pd.DataFrame:
    """Help rate, harm rate and paired lift in percent, over the comparisons that could be scored.

    `scored` counts those; the others have both attempts pass on a device that gives no time.
    """

    def cell(group: pd.DataFrame) -> "pd.Series[Any]":
        scored = group[group.ratio.notna()]
        rate = 100 / len(scored) if len(scored) else float("nan")
        return pd.Series(
            {
                "comparisons": len(group),
                "scored": len(scored),
                "help_pct": scored.helped.sum() * rate,
                "harm_pct": scored.harmed.sum() * rate,
                "lift_pct": 100 * paired_lift(group.ratio),
                "device": "+".join(sorted(set(group.device))),
                "demo": bool(group.demo.any()),
            }
        )

    if rows.empty:
        return pd.DataFrame(columns=[*by, "comparisons", "scored", "help_pct", "harm_pct", "lift_pct"])
    cells = [(key, cell(group)) for key, group in rows.groupby(list(by), sort=True)]
    return pd.DataFrame([{**dict(zip(by, key, strict=True)), **values} for key, values in cells])


class Choice(Parameters):
    """Parameters of 04_compare."""

    model: str = "all"  # a key in data/models.yaml, or all
    runs: str = "runs"  # folder of the results

    def folder(self) -> Path:
        """The folder of the results."""
        return ROOT / self.runs


def load_comparisons(choice: Choice) -> pd.DataFrame:
    """Comparisons of the finished attempts; raises ValueError for a model that has none."""
    rows = comparisons(records.load("attempts", choice.folder()))
    if rows.empty:
        raise ValueError(f"no comparison in {shown(choice.folder(), ROOT)} yet: run 01_solo, then 02_transfer")
    if choice.model == "all":
        return rows
    if choice.model not in set(rows.model):
        raise unknown("model in this run", choice.model, sorted(set(rows.model)))
    return rows[rows.model == choice.model].reset_index(drop=True)


def text(table: pd.DataFrame) -> str:
    """The summary as plain text, one decimal, with a warning line where rows are no result about a model."""
    lines = [
        table.to_string(index=False, float_format=lambda v: f"{v:.1f}", na_rep="-"),
        "help, harm and lift are over the scored comparisons; a rescue has the ratio 4, a break 1/4.",
    ]
    if len(table) and table.demo.any():
        lines.append(
            "demo: recorded answers; these figures show that the path works and say nothing about a model."
        )
    if len(table) and table.device.str.contains("emulated").any():
        lines.append("emulated: correctness and rules only; no comparison of times.")
    return "\n".join(lines)


def save(choice: Choice, rows: pd.DataFrame, table: pd.DataFrame) -> list[str]:
    """Write both tables as CSV under the run's folder; returns their paths."""
    directory = choice.folder() / "tables"
    directory.mkdir(parents=True, exist_ok=True)
    paths = [directory / "comparisons.csv", directory / "summary.csv"]
    for path, frame in zip(paths, (rows, table), strict=True):
        frame.to_csv(path, index=False)
    return [shown(path, ROOT) for path in paths]
