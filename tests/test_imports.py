"""Which part of the package may import which, and how light the core is."""

import ast
import subprocess
import sys

import pytest

from mkb_core.config import ROOT

PACKAGE = ROOT / "mkb_core"
FORBIDDEN = {
    "study": {"mkb_core.run", "mkb_core.bench", "mkb_core.emulator", "torch"},
    "bench": {"mkb_core.run", "mkb_core.study", "harbor", "litellm"},
    "emulator": {"mkb_core.run", "mkb_core.study", "mkb_core.bench"},
    "run": {"mkb_core.study"},
}


def imports(path, everywhere=True):
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{a.name}" for a in node.names)


@pytest.mark.parametrize("part", FORBIDDEN)
def test_arrows_go_one_way(part):
    files = sorted((PACKAGE / part).glob("**/*.py"))
    assert files
    for path in files:
        for name in imports(path):
            for forbidden in FORBIDDEN[part]:
                assert f"{name}.".startswith(f"{forbidden}.") is False, f"{path.name} imports {name}"


def test_heavy_packages_are_not_imported_at_the_top_of_a_module():
    heavy = {"torch", "litellm", "statsmodels", "openai", "anthropic", "cutlass", "tvm"}
    for path in PACKAGE.glob("**/*.py"):
        # loaded inside functions: by Harbor, and by emulator.install
        if path.name in ("llm.py", "agent.py", "torch_cuda.py", "torch_streams.py"):
            continue
        found = {name.split(".")[0] for name in imports(path, everywhere=False)} & heavy
        assert not found, (path, found)


def test_the_core_imports_neither_torch_nor_pandas_and_within_a_second():
    code = (
        "import time; t = time.perf_counter(); import mkb_core, sys; "
        "print(time.perf_counter() - t, 'torch' in sys.modules, 'pandas' in sys.modules)"
    )
    seconds, torch, pandas = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert (torch, pandas) == ("False", "False")
    assert float(seconds) < 1


def test_no_module_is_longer_than_300_lines():
    for path in PACKAGE.glob("**/*.py"):
        assert len(path.read_text().splitlines()) <= 300, path


def test_environment_yml_is_a_shell_around_pyproject():
    import tomllib

    import yaml

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert conda[0] == "python=" + project["requires-python"].split(",")[0].removeprefix(">=")
    extras = ",".join(project["optional-dependencies"])
    assert conda[-1] == {"pip": [f"-e .[{extras}]"]}
    assert len(conda) == 3
