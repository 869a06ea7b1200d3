"""Harbor's Docker environment with this benchmark's isolation; not run where no Docker engine is.

Its compose override and its handling of downloaded files are tested without an engine, nothing else is.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, override

from harbor.environments.capabilities import EnvironmentCapabilities
from harbor.environments.docker import COMPOSE_NO_NETWORK_PATH
from harbor.environments.docker.docker import DockerEnvironment
from harbor.models.task.config import NetworkMode, NetworkPolicy

# Harbor's own `sleep infinity` reaps no orphans, and an init of Docker's would end with the child that
# `kill -1` takes from it: a shell in a loop survives that (no signal reaches PID 1) and reaps.
PID_1 = "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"
KILL_ALL = "kill -9 -1; sleep 0.3; set -- /proc/[0-9]*; echo $#"


class NoNetworkDockerEnvironment(DockerEnvironment):  # type: ignore[misc]
    """One container without a network (no egress sidecar), capabilities, log mounts or more than `pids`."""

    def __init__(
        self,
        *args: Any,
        pids: int = 512,
        mounts: list[Any] | None = None,
        max_download_mb: int = 64,
        **kwargs: Any,
    ) -> None:
        """See `DockerEnvironment`; mounts below /logs are dropped (the agent could plant links there)."""
        kept = [m for m in mounts or [] if Path(str(m["target"])).parts[:2] != ("/", "logs")]
        super().__init__(*args, mounts=kept, **kwargs)
        if self._uses_compose:
            raise ValueError("a task with compose services of its own could give itself a network")
        self._max_download = max_download_mb << 20
        isolation = isolation_override(pids, self._effective_memory_mb)
        self.enforced = {"network": "docker network_mode none", "pids": f"docker pids_limit {pids}"}
        if self._effective_memory_mb:
            self.enforced["memory"] = f"docker mem_limit {self._effective_memory_mb} MB"
        if self._effective_cpus:
            self.enforced["cpu"] = f"docker cpus {self._effective_cpus}"
        self._override_path = Path(self.trial_paths.trial_dir, "docker-compose-isolation.json")
        self._override_path.parent.mkdir(parents=True, exist_ok=True)
        self._override_path.write_text(json.dumps(isolation, indent=1))

    @staticmethod
    @override
    def _requires_egress_control(**policies: Any) -> bool:
        return False  # `network_mode: none` needs no sidecar that filters

    @property
    @override
    def capabilities(self) -> EnvironmentCapabilities:
        """As Docker, with the internet off and no log directories of the host inside."""
        return super().capabilities.model_copy(update={"disable_internet": True, "mounted": False})

    @override
    def validate_network_policy_support(self, network_policy: NetworkPolicy | None = None) -> None:
        """Refuse tasks that want a network."""
        mode = (network_policy or self.network_policy).network_mode
        if mode != NetworkMode.NO_NETWORK:
            raise ValueError(f"network_mode={mode.value!r}: this environment only has 'no-network'")

    @property
    @override
    def _docker_compose_paths(self) -> list[Path]:
        return [*super()._docker_compose_paths, COMPOSE_NO_NETWORK_PATH, self._override_path]

    @override
    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy one regular file out; `docker cp` would also make the agent's links on the host."""
        with tempfile.TemporaryDirectory(prefix="mkb-download-") as scratch:
            copy = Path(scratch, "file")
            await super().download_file(source_path, copy)
            if copy.is_symlink() or not copy.is_file() or copy.stat().st_size > self._max_download:
                raise RuntimeError(f"{source_path} is not a regular file of at most {self._max_download} bytes")
            Path(target_path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(copy, target_path)

    @override
    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy the regular files of a directory out, never over one that the host has already."""
        with tempfile.TemporaryDirectory(prefix="mkb-download-") as scratch:
            await super().download_dir(source_dir, Path(scratch, "tree"))
            merge_regular(Path(scratch, "tree"), Path(target_dir))

    async def kill_all(self) -> int:
        """SIGKILL every process of the container but its PID 1; returns how many are left, 1 if unknown."""
        result = await self.exec(KILL_ALL, user="root")
        count = (result.stdout or "").strip()
        # PID 1, the `sleep` that it has started again, and the shell that counts
        return max(0, int(count) - 3) if count.isdigit() else 1


def isolation_override(pids: int, memory_mb: int | None) -> dict[str, Any]:
    """The compose file that Harbor's own lacks; without memswap_limit swap would double the memory."""
    main: dict[str, Any] = {
        "pids_limit": pids,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "command": ["sh", "-c", PID_1.replace("$", "$$")],  # compose expands a single one
    }
    if memory_mb:
        main["memswap_limit"] = f"{memory_mb}m"
    return {"services": {"main": main}}


def merge_regular(source: Path, target: Path) -> None:
    """Copy the regular files below `source` to new places below `target`; links are not followed."""
    for directory, _subdirs, names in source.walk():
        for name in names:
            path = directory / name
            place = target / path.relative_to(source)
            if path.is_symlink() or not path.is_file() or place.is_symlink() or place.exists():
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
