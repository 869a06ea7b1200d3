"""Which installed packages the sandbox holds."""

import importlib
import shutil
import sys
from email.message import Message
from importlib import metadata
from pathlib import Path

import pytest

from mkb_core.run import bwrap
from mkb_core.run import toolchain as module
from mkb_core.run.toolchain import ToolchainError, closure, toolchain


class FakeSite:
    """A site-packages directory with distributions made of metadata alone."""

    def __init__(self, root):
        self.root = root

    def add(self, name, files, requires=(), version="1.0"):
        info = self.root / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        headers = Message()
        headers["Metadata-Version"], headers["Name"], headers["Version"] = "2.1", name, version
        for requirement in requires:
            headers["Requires-Dist"] = requirement
        (info / "METADATA").write_text(str(headers))
        for file in files:
            if not file.startswith(".."):
                (self.root / file).parent.mkdir(parents=True, exist_ok=True)
                (self.root / file).write_text("")
        names = [*files, f"{info.name}/METADATA"]
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in names))


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    importlib.invalidate_caches()
    module._toolchain.cache_clear()
    yield FakeSite(tmp_path)
    module._toolchain.cache_clear()


def names(tools):
    return [str(e.relative_to(tools.site_packages)) for e in tools.entries if "dist-info" not in e.name]


def test_the_closure_follows_requirements_extras_and_markers(site):
    site.add("Root_Package", ["root/__init__.py"], ["a[x] >= 1", "b; python_version < '3'", "gone"])
    site.add("a", ["a.py"], ["c; extra == 'x'", "d; extra == 'y'", "root-package"])
    for name in "bcd":
        site.add(name, [f"{name}.py"])
    assert set(closure(["root-package"])) == {"root-package", "a", "c"}
    assert set(closure(["root-package", "a[y]"])) == {"root-package", "a", "c", "d"}


def test_a_missing_requirement_names_the_install_line(site):
    with pytest.raises(ToolchainError, match="uv sync --extra dsl"):
        toolchain(["torch"])


def test_entries_are_whole_directories_unless_a_stranger_shares_them(site):
    site.add("mine", ["mine/__init__.py", "ns/mine/x.py", "ns/deep/m/x.h", "mine.pth", "../../bin/mine"])
    site.add("also-mine", ["ns/also/x.py", "single.py"])
    tools = toolchain(["mine", "also-mine"])
    assert names(tools) == ["mine", "mine.pth", "ns", "single.py"]
    site.add("stranger", ["ns/stranger.py", "ns/deep/s/x.h", "stranger/__init__.py"])
    module._toolchain.cache_clear()
    importlib.invalidate_caches()
    tools = toolchain(["mine", "also-mine"])
    assert names(tools) == ["mine", "mine.pth", "ns/also", "ns/deep/m", "ns/mine", "single.py"]
    assert tools.versions == {"mine": "1.0", "also-mine": "1.0"}
    inside = dict(tools.binds())
    assert inside[tools.site_packages / "ns/deep/m"] == f"{module.SITE_PACKAGES}/ns/deep/m"


def test_the_sandbox_gets_a_virtual_environment(site):
    site.add("mine", ["mine.py"])
    tools = toolchain(["mine"])
    assert f"home = {sys.base_prefix}/bin\n" in tools.files()["/opt/dsl/pyvenv.cfg"]
    links = {place: target for target, place in tools.symlinks()}
    assert links["/opt/dsl/bin/python3"] == str(module.interpreter())
    headers = {links["/opt/dsl/cuda/include"], links["/opt/dsl/cuda/targets/x86_64-linux/include"]}
    assert headers == {f"{module.SITE_PACKAGES}/nvidia/cu13/include"}
    assert tools.env == {"CUTE_DSL_ARCH": "sm_90a", "CUDA_PATH": "/opt/dsl/cuda"}


def installed(name):
    return any(True for _ in metadata.distributions(name=name))


@pytest.mark.dsl
@pytest.mark.skipif(not installed("torch"), reason="no extra `dsl`: run `uv sync --extra dsl`")
def test_the_real_toolchain_is_the_dsl_extra_and_nothing_else():
    tools = toolchain()
    entries = set(names(tools))
    assert {"torch", "tvm", "tvm_ffi", "nvidia_cutlass_dsl", "nvidia_cutlass_dsl_packages.pth"} <= entries
    strangers = {"mkb_core", "harbor", "litellm", "papermill", "pytest", "_pytest", "pandas", "ruff", "openai"}
    assert not {e.split("/")[0] for e in entries} & strangers
    assert not [e for e in entries if e.startswith("_editable_impl")]
    assert all(e.exists() for e in tools.entries)
    assert (tools.site_packages / "nvidia/cu13/include/nvrtc.h").exists()
    assert "metakernelbench" not in tools.versions


@pytest.mark.dsl
@pytest.mark.skipif(not installed("metakernelbench"), reason="the project itself is not installed")
def test_the_requirements_are_those_of_the_extra():
    extra = {r.name for r in module._requires(metadata.distribution("metakernelbench"), "dsl")}
    asked = {r.split("[")[0] for r in module.DSL_REQUIREMENTS}
    core = {r.name for r in module._requires(metadata.distribution("metakernelbench"), "")}
    assert extra - core == asked - {"numpy"}


def test_only_the_interpreter_of_its_prefix_is_shown(tmp_path):
    files = ["bin/python3.12", "bin/nvcc", "lib/libpython3.12.so", "lib/python3.12/os.py", "lib/cuda/x"]
    for file in [*files, "lib/python3.12/site-packages/secret.py"]:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    binds, masked = bwrap.interpreter_binds(tmp_path / "bin/python3.12")
    assert {str(p.relative_to(tmp_path)) for p, _ in binds} == {
        *("bin/python3.12", "lib/python3.12", "lib/libpython3.12.so"),
    }
    assert all(str(source) == place for source, place in binds)
    assert masked == [str(tmp_path / "lib/python3.12/site-packages")]
    assert bwrap.interpreter_binds(Path("/usr/bin/python3.12")) == ([], [])


def test_the_interpreter_runs_the_init():
    assert shutil.which(str(module.interpreter()))
