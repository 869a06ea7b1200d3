"""Storage of finished attempts: whole or not at all, checked, and loaded as tables."""

import json
import os
import signal
import subprocess
import sys
import time

import pandera.errors
import pytest

from mkb_core import records


def row(attempt="m/p28/tirx/solo/r1", **change):
    fields = dict.fromkeys(records.columns("attempts"))
    model, problem, dsl, arm, _ = attempt.split("/")
    return fields | {
        "attempt": attempt, "model": model, "problem": problem, "family": "mlp_norm", "dsl": dsl, "arm": arm,
        "replicate": 1, "status": "run", "verdict": "passed", "passed": True, "submissions": 2,
        "fingerprint": "f", "device": "emulated", "demo": True, **change,
    }  # fmt: skip


def rows(**change):
    return {"attempts": [row(**change)], "submissions": [], "verdicts": [], "skills": []}


def test_a_finished_attempt_is_loaded_with_nulls_for_what_is_unknown(tmp_path):
    folder = tmp_path / "attempts/m/p28/tirx/solo/r1"
    assert records.finished(folder) is None
    records.finish(folder, rows())
    table = records.load("attempts", tmp_path)
    assert len(table) == 1
    assert table.kernel_ms.isna().all()
    assert table.turns.isna().all()
    assert records.finished(folder) == rows()


def test_a_wrong_row_is_refused_before_anything_is_written(tmp_path):
    folder = tmp_path / "attempts/m/p28/tirx/solo/r1"
    with pytest.raises(pandera.errors.SchemaErrors, match="arm"):
        records.finish(folder, rows(arm="both"))
    assert records.finished(folder) is None


def test_unknown_table_lists_the_tables():
    with pytest.raises(ValueError, match="unknown table 'atempts'; there are: attempts, submissions"):
        records.load("atempts")


def test_full_disk_leaves_the_old_file_and_no_rubbish(tmp_path, monkeypatch):
    path = tmp_path / "attempt.json"
    records.write_whole(path, "old")

    def full(_fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        records.write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_sigkill_while_writing_never_leaves_half_a_file(tmp_path):
    path = tmp_path / "attempt.json"
    code = (
        "import sys, pathlib; from mkb_core.records import write_whole\n"
        "n = 0\n"
        "while True:\n"
        "    n += 1; write_whole(pathlib.Path(sys.argv[1]), '[' + ','.join([str(n)] * 20000) + ']')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(path)])
    until = time.monotonic() + 60
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    values = json.loads(path.read_text())
    assert len(values) == 20000
    assert len(set(values)) == 1


def test_published_parquet_holds_the_same_tables(tmp_path):
    import pandas as pd

    records.finish(tmp_path / "attempts/m/p28/tirx/solo/r1", rows())
    paths = records.publish(tmp_path, tmp_path / "tables")
    assert [p.stem for p in paths] == list(records.CONTRACTS)
    again = pd.read_parquet(tmp_path / "tables/attempts.parquet")
    assert list(again.attempt) == ["m/p28/tirx/solo/r1"]


def test_every_column_is_documented():
    from mkb_core.config import DATA

    text = (DATA / "README.md").read_text()
    for table in records.CONTRACTS:
        section = text.split(f"## `{table}`")[1].split("\n## ")[0]
        missing = [c for c in records.columns(table) if f"`{c}`" not in section]
        assert not missing, (table, missing)
