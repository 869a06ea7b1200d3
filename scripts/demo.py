"""The main job with recorded answers: solo attempts, skill-conditioned attempts, comparisons.

    make demo

Runs the three notebooks through papermill with model=demo. What is finished is kept, so the same line resumes.
"""

import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = (
    ("01_solo", {"model": "demo"}),
    ("02_transfer", {"model": "demo"}),
    ("04_compare", {"model": "demo"}),
)


def quiet_kernel(directory: Path) -> None:
    """Jupyter's warnings about its own transport and debugger say nothing about this run."""
    profile = directory / "profile_default"
    profile.mkdir(parents=True, exist_ok=True)
    (profile / "ipython_kernel_config.py").write_text("c.IPKernelApp.log_level = 50\n")
    os.environ |= {"IPYTHONDIR": str(directory), "PYDEVD_DISABLE_FILE_VALIDATION": "1", "PYTHONWARNINGS": "ignore"}


def main() -> int:
    """Run the notebooks; exit code 1 where one fails."""
    import papermill

    started = time.monotonic()
    output = ROOT / "runs" / "nb"
    output.mkdir(parents=True, exist_ok=True)
    quiet_kernel(ROOT / "runs" / ".ipython")
    for name, parameters in NOTEBOOKS:
        print(f"== papermill notebooks/{name}.ipynb 'runs/nb/{name}--demo.ipynb' -p model demo", flush=True)
        try:
            papermill.execute_notebook(
                ROOT / "notebooks" / f"{name}.ipynb",
                output / f"{name}--demo.ipynb",
                parameters,
                cwd=ROOT,
                progress_bar=False,
                stdout_file=sys.stdout,
                stderr_file=sys.stderr,
            )
        except papermill.PapermillExecutionError as error:
            print(f"{name} failed: {error.ename}: {error.evalue}", file=sys.stderr)
            return 1
    print(
        f"== done in {time.monotonic() - started:.0f} s; executed notebooks are in runs/nb, tables in runs/tables"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
