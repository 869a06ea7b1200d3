"""The choice of a sandbox, and the Docker environment as far as it can be seen without an engine."""

import asyncio
import json
import logging
import os
import shutil
import subprocess

import pytest
import yaml
from harbor.environments.base import ExecResult
from harbor.environments.docker.docker import DockerEnvironment
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.paths import TrialPaths

from mkb_core.run import docker, environments
from mkb_core.run.environments import choose


@pytest.fixture
def make(tmp_path):
    def build(network="no-network", dockerfile=True, **kwargs):
        directory = tmp_path / "environment"
        directory.mkdir(exist_ok=True)
        (directory / ("Dockerfile" if dockerfile else "docker-compose.yaml")).write_text("FROM scratch\n")
        mode = NetworkMode(network)
        return docker.NoNetworkDockerEnvironment(
            environment_dir=directory,
            environment_name="box",
            session_id="box__env",
            trial_paths=TrialPaths(tmp_path / "trial"),
            task_env_config=EnvironmentConfig(network_mode=mode, cpus=2, memory_mb=1024),
            network_policy=NetworkPolicy(network_mode=mode),
            logger=logging.getLogger("box"),
            **kwargs,
        )

    return build


def test_the_compose_files_cut_the_network_and_bound_processes_and_swap(make):
    environment = make(pids=99)
    main = {}
    for path in environment._docker_compose_paths:
        text = path.read_text()
        main |= (json.loads(text) if path.suffix == ".json" else yaml.safe_load(text))["services"]["main"]
    assert main["network_mode"] == "none"
    assert (main["pids_limit"], main["memswap_limit"], main["cap_drop"]) == (99, "1024m", ["ALL"])
    # PID 1 has to outlive `kill -1` and reap; `$$` is compose's `$`
    assert main["command"][:2] == ["sh", "-c"]
    assert main["command"][2].replace("$$", "$") == docker.PID_1
    assert "$$!" in main["command"][2]
    assert main["security_opt"] == ["no-new-privileges:true"]
    assert environment.enforced["pids"] == "docker pids_limit 99"
    assert not environment._enable_egress_control
    assert environment.capabilities.disable_internet
    assert not environment.capabilities.mounted


def test_log_directories_of_the_host_are_not_mounted(make, tmp_path):
    channel = {"type": "bind", "source": str(tmp_path), "target": "/submit", "read_only": True}
    logs = {"type": "bind", "source": str(tmp_path), "target": "/logs/agent"}
    assert make(mounts=[logs, channel])._mounts == [channel]


def test_tasks_that_could_have_a_network_are_refused(make):
    with pytest.raises(ValueError, match="no-network"):
        make(network="public")
    with pytest.raises(ValueError, match="compose services"):
        make(dockerfile=False)


@pytest.mark.parametrize(("counted", "left"), [("3\n", 0), ("5\n", 2), (None, 1), ("", 1)])
def test_kill_all_counts_what_is_left(make, monkeypatch, counted, left):
    async def answer(self, command, user=None):
        return ExecResult(stdout=counted, return_code=0 if counted else 137)

    monkeypatch.setattr(DockerEnvironment, "exec", answer)
    assert asyncio.run(make().kill_all()) == left


async def copy_file(self, source_path, target_path):
    shutil.copyfile(source_path, target_path, follow_symlinks=False)


async def copy_tree(self, source_dir, target_dir):
    shutil.copytree(source_dir, target_dir, symlinks=True)


def test_links_do_not_reach_the_host(make, tmp_path, monkeypatch):
    monkeypatch.setattr(DockerEnvironment, "download_file", copy_file)
    monkeypatch.setattr(DockerEnvironment, "download_dir", copy_tree)
    inside = tmp_path / "inside"
    (inside / "d").mkdir(parents=True)
    (inside / "kernel.py").symlink_to("/etc/passwd")
    (inside / "d" / "good.py").write_text("good")
    (inside / "trajectory.json").write_text("forged")
    (inside / "etc").symlink_to("/etc")
    environment = make(max_download_mb=1)
    with pytest.raises(RuntimeError, match="not a regular file"):
        asyncio.run(environment.download_file(str(inside / "kernel.py"), tmp_path / "out" / "kernel.py"))
    assert not os.path.lexists(tmp_path / "out" / "kernel.py")
    asyncio.run(environment.download_file(str(inside / "d/good.py"), tmp_path / "out" / "good.py"))
    assert (tmp_path / "out" / "good.py").read_text() == "good"
    target = tmp_path / "agent"
    target.mkdir()
    (target / "trajectory.json").write_text("own")
    asyncio.run(environment.download_dir(str(inside), target))
    assert {str(p.relative_to(target)) for p in target.rglob("*")} == {"trajectory.json", "d", "d/good.py"}
    assert (target / "trajectory.json").read_text() == "own"


def test_names(monkeypatch):
    monkeypatch.setattr(environments, "docker_answers", lambda: True)
    monkeypatch.setattr(shutil, "which", lambda tool: f"/usr/bin/{tool}")
    assert choose() == choose("bwrap") == "mkb_core.run.sandbox:BubblewrapEnvironment"
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    assert choose() == choose("docker") == "mkb_core.run.docker:NoNetworkDockerEnvironment"
    monkeypatch.setattr(environments, "docker_answers", lambda: False)
    assert (choose("daytona"), choose("my.module:Class")) == ("daytona", "my.module:Class")
    with pytest.raises(ValueError, match="unknown sandbox 'chroot'"):
        choose("chroot")
    with pytest.raises(RuntimeError, match="apt-get install bubblewrap tmux"):
        choose()


def test_a_sandbox_that_cannot_start_is_named_before_anything_runs(monkeypatch):
    monkeypatch.setattr(environments, "problem", lambda: "user namespaces are refused: allow them")
    with pytest.raises(RuntimeError, match="user namespaces are refused"):
        environments.check("bwrap")
    environments.check("daytona")


def test_a_docker_client_without_an_engine_does_not_count(monkeypatch):
    def run(command, **kwargs):
        assert kwargs["timeout"] == 5
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", run)
    assert not environments.docker_answers()

    def missing(command, **kwargs):
        raise FileNotFoundError(command[0])

    monkeypatch.setattr(subprocess, "run", missing)
    assert not environments.docker_answers()
