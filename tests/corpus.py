"""Submissions with a known verdict: `python tests/corpus.py [--device cuda] [--only GLOB] [--out FILE]`.

Hostile ones (evil) say in their docstring's header what the verifier must answer; honest ones that look suspicious
must pass. A case of the device `cuda` needs a GPU, but what the static rules say of it is shown everywhere.
"""

import argparse
import ast
import dataclasses
import fnmatch
import json
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

from mkb_core.bench.dsl import DSLS
from mkb_core.bench.problems import Workload
from mkb_core.bench.verdict import Status
from mkb_core.bench.verify import Verifier, resolve, static_fault
from mkb_core.config import protocol

FOLDERS = {name: Path(__file__).parent / name for name in ("evil", "honest")}
CLASSES = ("cache", "timing", "numerics", "tampering", "evasion", "resources")
# what hangs is given up early; a verdict that does not hang is never near these deadlines
QUICK = protocol().verdict.model_copy(update={"first_call_seconds": 6, "call_seconds": 3})


@dataclasses.dataclass(frozen=True)
class Case:
    """One file, and what its header expects: a status (of `rule` with its id), and the one behind the rules."""

    path: Path
    problem: str
    dsl: str
    klass: str
    expected: str
    rule: str = ""
    behind: tuple[str, ...] = ()
    device: str | None = None

    def __str__(self) -> str:
        behind = f" | {' or '.join(self.behind)}" if self.behind else ""
        return f"{self.expected} {self.rule}".strip() + behind


def hangs(case: Case) -> bool:
    return "timeout" in (case.expected, *case.behind)


def parse(path: Path) -> Case:
    """The case in a file; raises ValueError, with the path, where its name or its header is not of the form."""
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"), str(path))) or ""
    text, _, header = doc.partition("\n\n")
    fields = dict(re.findall(r"^(\w[\w ]*): +(.+)$", header, re.M))
    name = re.fullmatch(r"(p\d\d)_([a-z]+)__[a-z0-9_]+", path.stem)
    honest = path.parent.name == "honest"
    known = ("Looks like",) if honest else ("Class", "Expected", "Behind", "Device")
    klass, device = "honest" if honest else fields.get("Class"), fields.get("Device")
    expected, _, rule = ("passed" if honest else fields.get("Expected", "")).partition(" ")
    behind = tuple(fields["Behind"].split(" or ")) if "Behind" in fields else ()
    wrong = " ".join(repr(s) for s in (expected, *behind) if s not in get_args(Status))
    for right, message in (
        (name and name[2] in DSLS, f"its name must be like p36_{'|'.join(DSLS)}__what_it_does.py"),
        (text.endswith("."), "its docstring must begin with one or two sentences"),
        (len(fields) == len(header.splitlines()), f"not every line of the header is `Name: value`: {header!r}"),
        (known[0] in fields and set(fields) <= set(known), f"its header has {', '.join(known)}, or some of them"),
        (klass in (*CLASSES, "honest"), f"Class is {klass!r}; it must be one of {', '.join(CLASSES)}"),
        (not wrong, f"{wrong} is no status; there are: {', '.join(get_args(Status))}"),
        ((expected == "rule") == bool(rule), "`rule`, and no other status, is followed by the id of a rule"),
        (not behind or rule, "Behind is for what a static rule refuses"),
        (device in (None, "cuda"), f"Device is {device!r}; it must be cuda, or left out"),
    ):
        if not right:
            raise ValueError(f"{path}: {message}")
    return Case(path, name[1], name[2], klass, expected, rule, behind, device)


def cases(folder: str) -> list[Case]:
    return [parse(path) for path in sorted(FOLDERS[folder].glob("*.py"))]


def judge(case: Case, verifier: Verifier, workload: Workload | None = None) -> tuple[str, str]:
    """What the verifier says, and what is wrong with that (empty: nothing)."""
    data, shown = case.path.read_bytes(), case.device in (None, verifier.device)
    if not shown and not case.behind:
        return "not shown", ""
    verdict = verifier.verify(case.problem, case.dsl, data, workload=workload).model_dump() if shown else None
    facts = verdict or static_fault(case.dsl, data) or {"status": "no rule", "message": "nothing found"}
    rules = re.findall(r"rule `([\w-]+)`", facts["message"])
    said = " ".join([facts["status"], *dict.fromkeys(rules)])
    if facts["status"] != case.expected or (case.rule and case.rule not in rules):
        return said, f"expected {case}: {facts['message']}"
    if not shown or not case.behind:
        return said if shown else f"{said} | not shown", ""
    second = verifier.facts_without_rules(case.problem, case.dsl, data, facts["workload"], facts["seed"])
    wrong = "" if second["status"] in case.behind else f"expected {case}: {second['message']}"
    return f"{said} | {second['status']}", wrong


class Lanes:
    """Threads with verifiers of their own: one patient, one for what hangs."""

    def __init__(self, device: str, workload: Workload | None) -> None:
        self.device, self.workload, self.own, self.opened = device, workload, threading.local(), []

    def judge(self, case: Case) -> tuple[str, str]:
        kind = "quick" if hangs(case) else "patient"
        if not hasattr(self.own, kind):
            verifier = Verifier(self.device, QUICK if kind == "quick" else None)
            setattr(self.own, kind, verifier)
            self.opened.append(verifier)
        return judge(case, getattr(self.own, kind), self.workload)

    def close(self) -> None:
        for verifier in self.opened:
            verifier.close()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("auto", "cuda", "emulated"), default="auto")
    parser.add_argument("--workload", choices=("full", "small"), help="default: full on cuda, small emulated")
    parser.add_argument("--only", default="*", metavar="GLOB", help="of file names without .py")
    parser.add_argument("--folder", choices=tuple(FOLDERS), help="evil or honest alone")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--lanes", type=int, default=1, help="verdicts side by side")
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    given = parser.parse_args(arguments)
    folders = [given.folder] if given.folder else FOLDERS
    chosen = [c for folder in folders for c in cases(folder) if fnmatch.fnmatch(c.path.stem, given.only)]
    rows, lanes, wanted = [], Lanes(given.device, given.workload), chosen * given.repeats
    try:
        with ThreadPoolExecutor(given.lanes) as pool:
            for case, (got, wrong) in zip(wanted, pool.map(lanes.judge, wanted), strict=True):
                print(
                    f"{case.path.stem:46} {case!s:38} {got:32} {'WRONG: ' + wrong if wrong else 'ok'}", flush=True
                )
                rows.append({"file": case.path.stem, "class": case.klass, "expected": str(case)})
                rows[-1] |= {"got": got, "wrong": wrong}
    finally:
        lanes.close()
    device = resolve(given.device)
    for klass in (*CLASSES, "honest"):
        mine = [row for row in rows if row["class"] == klass and "not shown" not in row["got"]]
        print(f"{klass:10} {sum(not row['wrong'] for row in mine)} of {len(mine)} verdicts as expected")
    hidden = dict.fromkeys(row["file"] for row in rows if "not shown" in row["got"])
    print(f"not shown on {device}, or by the static rules alone: {len(hidden)}:", *hidden)
    if given.out:
        head = {"command": "python " + " ".join(sys.argv), "device": device}
        given.out.write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n")
    return any(row["wrong"] for row in rows)


if __name__ == "__main__":
    sys.exit(main())
