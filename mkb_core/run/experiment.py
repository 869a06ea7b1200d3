"""What the notebooks call: a validated selection, its plan as a table, and the run."""

from pathlib import Path

import pandas as pd
from pydantic import Field

from mkb_core import records
from mkb_core.bench.dsl import DSLS, get_dsl
from mkb_core.bench.problems import problems
from mkb_core.bench.verify import resolve
from mkb_core.config import ROOT
from mkb_core.notebook import Parameters
from mkb_core.run.demo import recorded
from mkb_core.run.models import get_model
from mkb_core.run.plan import Arm, Attempt, grid, select
from mkb_core.run.pool import RECORDINGS, Pool, status


class Selection(Parameters):
    """Parameters of 01_solo and 02_transfer."""

    model: str = "demo"  # a key in data/models.yaml
    problems: str = "all"  # ids, families or globs, separated by spaces
    dsls: str = "cutedsl tirx"  # target DSLs
    replicates: int = Field(1, ge=1)
    device: str = "auto"  # auto, cuda or emulated
    environment: str = "auto"  # auto, docker, bwrap or a Harbor environment type
    workers: int = Field(2, ge=1)  # attempts side by side
    minutes: float = Field(0.0, ge=0)  # of one attempt; 0: the protocol's
    runs: str = "runs"  # folder of the results
    recordings: str = str(RECORDINGS.relative_to(ROOT))  # folder that the model demo replays
    rerun_stale: bool = False  # also run what is finished for another task, protocol, DSL version or device
    dry_run: bool = False  # only show the plan

    def folder(self) -> Path:
        """The folder of the results."""
        return ROOT / self.runs

    def attempts(self, arm: Arm) -> list[Attempt]:
        """The attempts that this selection names; raises ValueError for a name that does not exist."""
        model = get_model(self.model)
        dsls = [get_dsl(key).key for key in self.dsls.replace(",", " ").split()]
        available = problems()
        if model.demo:
            found = recorded(ROOT / self.recordings)
            if not found:
                raise ValueError(f"{self.recordings} holds no complete recording of a problem (four files each)")
            available = {key: available[key] for key in found if key in available}
        chosen = select(self.problems, available.values())
        return list(grid(model.key, chosen, dsls or tuple(DSLS), arm, self.replicates))


def plan(selection: Selection, arm: Arm) -> pd.DataFrame:
    """One row an attempt: id, and whether it is done, stale or missing."""
    device = resolve(selection.device)
    rows = [(a.id, status(a, device, selection.folder())) for a in selection.attempts(arm)]
    return pd.DataFrame(rows, columns=["attempt", "status"])


async def run(selection: Selection, arm: Arm) -> pd.DataFrame:
    """Run what is missing, one line a finished attempt; returns this selection's rows of `attempts`."""
    chosen = selection.attempts(arm)
    if not selection.dry_run:
        pool = Pool(
            runs=selection.folder(),
            device=selection.device,
            environment=selection.environment,
            workers=selection.workers,
            minutes=selection.minutes or None,
            rerun_stale=selection.rerun_stale,
            recordings=ROOT / selection.recordings,
        )
        await pool.run(chosen)
    table = records.load("attempts", selection.folder())
    return table[table.attempt.isin([a.id for a in chosen])].reset_index(drop=True)
