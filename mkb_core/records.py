"""Tables of attempts, submissions, verdicts and skills: their contracts, and how they are stored and loaded.

While a run goes on, each finished attempt is one JSON file, written whole or not at all. Tables are read from
those files, or from the published Parquet files of data/tables. No text in tables, only paths and digests.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pandas as pd
import pandera.pandas as pa
from pandera.typing import Series

from mkb_core.config import DATA, RUNS, unknown

FINISHED = "attempt.json"
TABLES = DATA / "tables"


class Table(pa.DataFrameModel):
    """Base of the contracts: every column is declared, and comes in the declared type."""

    class Config:
        """Pandera settings."""

        strict = True
        coerce = True


class Attempts(Table):
    """One row an attempt. `status` is run or skipped; verdict columns are those of the final kernel.py."""

    attempt: Series[str] = pa.Field(unique=True)
    model: Series[str]
    problem: Series[str]
    family: Series[str]
    dsl: Series[str]
    arm: Series[str] = pa.Field(isin=["solo", "skill"])
    replicate: Series[int] = pa.Field(ge=1)
    status: Series[str] = pa.Field(isin=["run", "skipped"])
    stop: Series[str] = pa.Field(nullable=True)
    verdict: Series[str] = pa.Field(nullable=True)
    passed: Series[bool]
    speedup: Series[float] = pa.Field(nullable=True, gt=0)
    kernel_ms: Series[float] = pa.Field(nullable=True, gt=0)
    baseline_ms: Series[float] = pa.Field(nullable=True, gt=0)
    submissions: Series[int] = pa.Field(ge=0)
    turns: Series[pd.Int64Dtype] = pa.Field(nullable=True)
    tokens_in: Series[pd.Int64Dtype] = pa.Field(nullable=True)
    tokens_cached: Series[pd.Int64Dtype] = pa.Field(nullable=True)
    tokens_out: Series[pd.Int64Dtype] = pa.Field(nullable=True)
    cost_usd: Series[float] = pa.Field(nullable=True)
    seconds: Series[float] = pa.Field(nullable=True)
    skill_sha256: Series[str] = pa.Field(nullable=True)
    given_skill_sha256: Series[str] = pa.Field(nullable=True)
    fingerprint: Series[str]
    device: Series[str] = pa.Field(isin=["cuda", "emulated"])
    demo: Series[bool]


class Submissions(Table):
    """One row a kernel.py handed in; `number` is 1 to 10 for feedback, 0 for the final file."""

    attempt: Series[str]
    number: Series[int] = pa.Field(ge=0)
    sha256: Series[str]
    bytes: Series[int]
    seconds: Series[float] = pa.Field(nullable=True)
    path: Series[str]
    device: Series[str]
    demo: Series[bool]


class Verdicts(Table):
    """One row a verdict; times in milliseconds, null where the device gives none."""

    attempt: Series[str]
    number: Series[int] = pa.Field(ge=0)
    problem: Series[str]
    dsl: Series[str]
    device: Series[str]
    workload: Series[str]
    status: Series[str]
    source_sha256: Series[str]
    draws: Series[int]
    error_ratio: Series[float] = pa.Field(nullable=True)
    launches: Series[pd.Int64Dtype] = pa.Field(nullable=True)
    kernel_ms: Series[float] = pa.Field(nullable=True)
    kernel_p10_ms: Series[float] = pa.Field(nullable=True)
    kernel_p90_ms: Series[float] = pa.Field(nullable=True)
    baseline_ms: Series[float] = pa.Field(nullable=True)
    speedup: Series[float] = pa.Field(nullable=True)
    seconds: Series[float] = pa.Field(nullable=True)
    seed: Series[pd.Int64Dtype] = pa.Field(nullable=True)
    gpu: Series[str] = pa.Field(nullable=True)
    demo: Series[bool]


class Skills(Table):
    """One row a skill that an attempt left."""

    attempt: Series[str] = pa.Field(unique=True)
    sha256: Series[str]
    characters: Series[int]
    words: Series[int]
    path: Series[str]
    demo: Series[bool]


CONTRACTS: dict[str, type[Table]] = {
    "attempts": Attempts,
    "submissions": Submissions,
    "verdicts": Verdicts,
    "skills": Skills,
}


def columns(table: str) -> list[str]:
    """Names of a table's columns, in order."""
    return list(contract(table).to_schema().columns)


def contract(table: str) -> type[Table]:
    """The contract of this table; raises ValueError listing the tables that exist."""
    if table not in CONTRACTS:
        raise unknown("table", table, CONTRACTS)
    return CONTRACTS[table]


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there complete or not at all, and on disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def finish(folder: Path, rows: dict[str, list[dict[str, Any]]]) -> None:
    """Declare the attempt in this folder finished: its rows of every table, checked, in one file."""
    for table, found in rows.items():
        frame(table, found)
    write_whole(folder / FINISHED, json.dumps(rows, indent=1))


def finished(folder: Path) -> dict[str, list[dict[str, Any]]] | None:
    """Rows of the attempt in this folder, or None where it is not finished or its file is damaged."""
    try:
        rows = json.loads((folder / FINISHED).read_text(encoding="utf-8"))
        complete = set(rows) == set(CONTRACTS) and len(rows["attempts"]) == 1 and rows["attempts"][0]["attempt"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return cast(dict[str, list[dict[str, Any]]], rows) if complete else None


def frame(table: str, rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Rows as a validated frame; raises pandera.errors.SchemaErrors naming every column that is off."""
    found = pd.DataFrame(list(rows), columns=columns(table))
    return contract(table).validate(found, lazy=True)


def load(table: str, runs: Path = RUNS) -> pd.DataFrame:
    """All rows of a table from the finished attempts under `runs`, in the order of attempt ids."""
    contract(table)
    paths = sorted((runs / "attempts").glob(f"*/*/*/*/*/{FINISHED}"))
    found = [rows for path in paths if (rows := finished(path.parent))]
    return frame(table, (row for rows in found for row in rows[table]))


def publish(runs: Path = RUNS, directory: Path = TABLES) -> list[Path]:
    """Write every table of a run as Parquet; returns the paths."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for table in CONTRACTS:
        path = directory / f"{table}.parquet"
        load(table, runs).to_parquet(path, index=False)
        paths.append(path)
    return paths
