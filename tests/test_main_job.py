"""The three notebooks through papermill with recorded answers, killed in the middle and started again."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

from mkb_core import records
from mkb_core.config import DATA, ROOT

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.dsl,
    pytest.mark.sandbox,
    pytest.mark.skipif(not shutil.which("bwrap"), reason="no bubblewrap: apt-get install bubblewrap tmux"),
]
# what a clock or a random draw decides
VARYING = ["seconds", "seed", "error_ratio", "turns", "tokens_in", "tokens_cached", "tokens_out", "cost_usd"]


def papermill(name, runs, *parameters):
    line = [sys.executable, "-m", "papermill", f"notebooks/{name}.ipynb", str(runs / f"{name}.ipynb")]
    line += ["--no-progress-bar", "-p", "runs", str(runs), *parameters]
    return subprocess.Popen(
        line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def finish(process):
    output, _ = process.communicate(timeout=400)
    return process.returncode, output


def stable(table, runs):
    found = records.load(table, runs)
    return found.drop(columns=[c for c in VARYING if c in found])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run whose first notebook was killed in the middle with everything below it."""
    runs = tmp_path_factory.mktemp("runs")
    first = papermill("01_solo", runs, "-p", "model", "demo")
    until = time.monotonic() + 200
    while not list(runs.glob("attempts/*/*/*/*/*/ledger/ledger.jsonl")) and time.monotonic() < until:
        time.sleep(0.1)
    os.killpg(first.pid, signal.SIGKILL)  # papermill; its kernel and sandboxes follow or are cleared below
    first.communicate()
    assert len(list(runs.glob("attempts/*/*/*/*/*/attempt.json"))) < 4
    for name in ("01_solo", "02_transfer"):
        code, output = finish(papermill(name, runs, "-p", "model", "demo"))
        assert code == 0, output[-3000:]
    code, output = finish(papermill("04_compare", runs))
    assert code == 0, output[-3000:]
    return runs


def test_eight_attempts_and_four_comparisons(whole):
    attempts = records.load("attempts", whole)
    assert len(attempts) == 8
    assert set(attempts.status) == {"run"}
    assert attempts.demo.all()
    outcome = attempts.set_index("attempt").verdict.to_dict()
    assert outcome == {
        "demo/p28/cutedsl/solo/r1": "passed",
        "demo/p28/tirx/solo/r1": "value",
        "demo/p36/cutedsl/solo/r1": "passed",
        "demo/p36/tirx/solo/r1": "passed",
        "demo/p28/cutedsl/skill/r1": "passed",
        "demo/p28/tirx/skill/r1": "passed",
        "demo/p36/cutedsl/skill/r1": "value",
        "demo/p36/tirx/skill/r1": "passed",
    }
    skills = set(records.load("skills", whole).attempt)
    assert set(outcome) - skills == {"demo/p36/tirx/skill/r1"}  # the one that writes none
    rows = pd.read_csv(whole / "tables" / "comparisons.csv")
    assert sorted(rows.case) == ["both", "both", "break", "rescue"]


def test_a_wrong_first_submission_is_repaired_after_feedback(whole):
    verdicts = records.load("verdicts", whole)
    story = verdicts[verdicts.attempt == "demo/p28/cutedsl/solo/r1"].sort_values("number")
    assert dict(zip(story.number, story.status, strict=True)) == {0: "passed", 1: "value", 2: "passed"}


def test_the_printed_table_shows_help_harm_lift_and_marks_the_rows(whole):
    cells = json.loads((whole / "04_compare.ipynb").read_text())["cells"]
    text = "".join("".join(o.get("text", "")) for c in cells for o in c.get("outputs", []))
    for word in ("help_pct", "harm_pct", "lift_pct", "demo: recorded answers"):
        assert word in text
    if (records.load("attempts", whole).device == "emulated").all():
        assert "emulated: correctness and rules only" in text


def test_a_killed_run_ends_with_the_tables_of_an_undisturbed_one(whole, tmp_path):
    code, output = finish(papermill("01_solo", tmp_path, "-p", "model", "demo", "-p", "problems", "p36"))
    assert code == 0, output[-3000:]
    for table in records.CONTRACTS:
        killed, undisturbed = stable(table, whole), stable(table, tmp_path)
        killed = killed[killed.attempt.isin(undisturbed.attempt)].reset_index(drop=True)
        assert len(undisturbed)
        pd.testing.assert_frame_equal(killed, undisturbed)


def test_the_same_line_again_redoes_nothing(whole):
    before = {p: p.stat().st_mtime_ns for p in whole.glob("attempts/**/*") if p.is_file()}
    code, output = finish(papermill("02_transfer", whole, "-p", "model", "demo"))
    assert code == 0, output[-3000:]
    assert {p: p.stat().st_mtime_ns for p in whole.glob("attempts/**/*") if p.is_file()} == before


@pytest.mark.parametrize("notebook", ["01_solo", "02_transfer", "04_compare"])
def test_a_wrong_parameter_fails_with_the_list_of_valid_ones(notebook, tmp_path):
    code, output = finish(papermill(notebook, tmp_path, "-p", "modle", "demo"))
    assert code == 1
    assert "modle" in output
    assert "valid are: " in output


def test_unknown_model_and_dry_run(tmp_path):
    code, output = finish(papermill("01_solo", tmp_path, "-p", "model", "gpt-1"))
    assert code == 1
    assert "unknown model 'gpt-1'; there are: demo, " in output
    code, output = finish(papermill("01_solo", tmp_path, "-p", "dry_run", "True"))
    assert code == 0
    assert not list(tmp_path.glob("attempts/**/attempt.json"))
    assert "demo/p28/cutedsl/solo/r1" in (tmp_path / "01_solo.ipynb").read_text()


def test_data_demo_says_that_it_is_written_by_hand():
    for path in (DATA / "demo").glob("*.yaml"):
        assert path.read_text().startswith("# Recorded answers of model=demo, written by hand")
