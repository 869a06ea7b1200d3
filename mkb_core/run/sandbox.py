"""A Harbor environment in bubblewrap: no network, no host files, bounded memory, CPU and processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from pathlib import Path, PurePosixPath
from typing import Any, override

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.models.task.config import NetworkMode, NetworkPolicy

from mkb_core import seccomp
from mkb_core.run import bwrap, toolchain
from mkb_core.run.cgroups import Cgroup
from mkb_core.run.execserver import Completed, ExecServer, MiB, SandboxDied
from mkb_core.run.transfer import Transfer
from mkb_core.run.watchdog import Watchdog
from mkb_core.scratch import scratch

__all__ = ["BubblewrapEnvironment", "SandboxDied"]

START_TIMEOUT_S = 60


class BubblewrapEnvironment(Transfer, BaseEnvironment):  # type: ignore[misc]
    """One sandbox; `enforced` says which limits hold and by which means (also in `sandbox.json`).

    Everything inside runs as uid 0 of a user namespace that maps to an unprivileged host uid; `user`
    arguments are therefore ignored. Only read-only bind mounts are taken, and none below /logs: what the
    agent could write there, the harness would follow on the host.
    """

    def __init__(
        self,
        *args: Any,
        pids: int = 512,
        tmpfs_mb: dict[str, int] | None = None,
        dsl: bool = True,
        use_cgroups: bool = True,
        sandbox_uid: int | None = None,
        max_output_mb: int = 16,
        max_download_mb: int = 64,
        **kwargs: Any,
    ) -> None:
        """See `BaseEnvironment` for the rest.

        Args:
            *args: Passed on.
            pids: Processes and threads at a time.
            tmpfs_mb: Sizes of writable directories, over `bwrap.TMPFS_MB`.
            dsl: Whether /opt/dsl (torch and the DSLs) is there and first on PATH.
            use_cgroups: False forces the second-choice limits of hosts without writable cgroups.
            sandbox_uid: Host uid when the harness is root; default: one without processes.
            max_output_mb: What `exec` keeps of a command's standard output.
            max_download_mb: The largest file or directory that leaves the sandbox.
            **kwargs: Passed on.
        """
        super().__init__(*args, **kwargs)
        self.enforced: dict[str, str] = {}
        self._pids, self._use_cgroups, self._uid = pids, use_cgroups, sandbox_uid
        self._max_output, self._max_download = max_output_mb * MiB, max_download_mb * MiB
        self._workdir = self.task_env_config.workdir or "/app"
        self._tmpfs = bwrap.places(tmpfs_mb, self._workdir)
        self._binds = [
            bwrap.read_only(m) for m in self._mounts if PurePosixPath(m["target"]).parts[:2] != ("/", "logs")
        ]
        self._toolchain = toolchain.toolchain() if dsl else None
        self._server: ExecServer | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._cgroup: Cgroup | None = None
        self._watchdog: Watchdog | None = None

    @staticmethod
    @override
    def type() -> str:
        """The name in Harbor's records."""
        return "bubblewrap"

    @property
    @override
    def capabilities(self) -> EnvironmentCapabilities:
        """No internet and, on purpose, no log directories of the host inside."""
        return EnvironmentCapabilities(disable_internet=True, mounted=False)

    @classmethod
    @override
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """Hard ceilings for both."""
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True)

    @override
    def validate_network_policy_support(self, network_policy: NetworkPolicy | None = None) -> None:
        """Refuse tasks that want a network."""
        mode = (network_policy or self._network_policy).network_mode
        if mode != NetworkMode.NO_NETWORK:
            raise ValueError(f"network_mode={mode.value!r}: the bubblewrap sandbox only has 'no-network'")

    @override
    def _validate_definition(self) -> None:
        """Nothing to check: the sandbox is this host's /usr, whatever the task's Dockerfile says."""

    @classmethod
    @override
    def preflight(cls) -> None:
        """Exit with what to install or allow when this host cannot run the sandbox."""
        if problem := bwrap.problem():
            raise SystemExit(problem)

    @override
    async def start(self, force_build: bool) -> None:
        """Bring the sandbox up; there is nothing to build."""
        try:
            await self._start()
        except BaseException:
            await self.stop(delete=True)
            raise
        await self._upload_environment_dir_after_start()

    async def _start(self) -> None:
        is_root = os.geteuid() == 0
        uid = (self._uid or bwrap.free_uid()) if is_root else None
        memory_mb, cpus = self._effective_memory_mb, self._effective_cpus
        if self._use_cgroups:
            self._cgroup = Cgroup.create(memory_mb=memory_mb, cpus=cpus, pids=self._pids)
            self.enforced.update(self._cgroup.enforced)
        inner = self._inner_limits(cpus)
        server = self._server = ExecServer()
        with scratch("stage") as empty:
            argv, fds = self._argv(server.child.fileno(), uid, Path(empty) if is_root else None, inner)
            try:
                ready = await server.attach(lambda: self._launch(argv, fds), START_TIMEOUT_S)
            finally:
                for fd in fds:
                    os.close(fd)
        if not ready or self._process is None:
            log = self._log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"the sandbox did not start: {log}\n{bwrap.problem() or ''}".rstrip())
        if memory_mb and "memory" not in self.enforced:
            self._watchdog = Watchdog(self._process.pid, memory_mb * MiB, self._tmpfs, server.kill_all_soon)
            self._watchdog.start()
            self.enforced["memory"] = f"watchdog kills all processes above {memory_mb} MB"
        self.enforced["network"] = "network namespace with lo only"
        self.enforced["seccomp"] = "system call filter"
        self.enforced["uid"] = str(uid if is_root else os.geteuid())
        self._write_record({})

    def _inner_limits(self, cpus: int | None) -> dict[str, int]:
        """What PID 1 has to limit because no cgroup does."""
        inner = {}
        if "pids" not in self.enforced:
            inner["pids"] = self._pids
            self.enforced["pids"] = f"RLIMIT_NPROC {self._pids}"
        if "cpu" not in self.enforced and cpus:
            inner["cpus"] = cpus
            self.enforced["cpu"] = f"affinity to {cpus} cores (the agent could widen it)"
        return inner

    def _argv(
        self, socket_fd: int, uid: int | None, staging: Path | None, inner: dict[str, int]
    ) -> tuple[list[str], list[int]]:
        interpreter = toolchain.interpreter()
        binds, masked = bwrap.interpreter_binds(interpreter)
        files = bwrap.made_etc(self._env()["PATH"])
        symlinks: list[tuple[str, str]] = []
        if self._toolchain is not None:
            binds = binds + self._toolchain.binds()
            files |= self._toolchain.files()
            symlinks = self._toolchain.symlinks()
        binds = binds + self._binds
        tmpfs = bwrap.scaled(self._tmpfs, (self._effective_memory_mb or 0) // 2)
        layout = bwrap.Layout(tmpfs, binds, files, symlinks, masked, [*bwrap.LOGS, self._workdir])
        prefix, reachable = bwrap.stage([source for source, _ in binds], staging)
        seccomp_fd = bwrap.memory_file(seccomp.program())
        argv, fds = bwrap.bwrap_argv(layout, reachable, seccomp_fd)
        init = [str(interpreter), "-I", "-S", bwrap.INIT_PATH, str(socket_fd), json.dumps(inner)]
        join = self._cgroup.join_argv() if self._cgroup is not None else []
        return [*join, *prefix, *bwrap.drop_argv(uid), *argv, *init], [seccomp_fd, *fds]

    async def _launch(self, argv: list[str], fds: list[int]) -> None:
        # from the event loop's thread: bwrap's --die-with-parent follows the thread that made it
        assert self._server is not None
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *argv,
                pass_fds=(self._server.child.fileno(), *fds),
                env=bwrap.HOST_ENV,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @override
    async def stop(self, delete: bool) -> None:
        """End everything inside; nothing of the sandbox is kept."""
        stats: dict[str, Any] = {}
        if self._watchdog is not None:
            stats = {"watchdog_peak_bytes": self._watchdog.peak, "watchdog_kills": self._watchdog.kills}
            await asyncio.to_thread(self._watchdog.stop)
        if self._server is not None:
            self._server.close()
        if self._process is not None:
            try:
                await asyncio.wait_for(self._process.wait(), 3)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                await self._process.wait()
        if self._cgroup is not None:
            stats |= self._cgroup.stats()
            stats["cgroup_removed"] = await asyncio.to_thread(self._cgroup.destroy)
        if self._process is not None:
            self._write_record(stats)
        self._server = self._process = self._cgroup = self._watchdog = None

    async def kill_all(self) -> int:
        """SIGKILL every process of the sandbox but its PID 1; returns how many are left."""
        if self._server is None:
            raise SandboxDied("the sandbox is not running")
        return await self._server.kill_all()

    @override
    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a shell command; a timeout is a `RuntimeError`."""
        argv = ["/bin/bash", "-c", command]
        done = await self._run(argv, cwd=cwd, env=env, timeout=timeout_sec, limit=self._max_output)
        stderr = done.err.decode(errors="replace")
        if done.dropped:
            stderr += f"\n[{done.dropped} bytes of stdout dropped]"
        return ExecResult(stdout=done.out.decode(errors="replace"), stderr=stderr, return_code=done.rc)

    @override
    async def _run(
        self,
        argv: list[str],
        *,
        limit: int,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout: float | None = 60,
        stdin: bytes | None = None,
    ) -> Completed:
        if self._server is None:
            raise SandboxDied("the sandbox is not running")
        cwd, env = cwd or self._workdir, self._env(env)
        return await self._server.run(argv, cwd=cwd, env=env, timeout=timeout, limit=limit, stdin=stdin)

    def _env(self, env: dict[str, str] | None = None) -> dict[str, str]:
        """The whole environment of a command; nothing comes from the host's."""
        base = {"HOME": "/root", "LANG": "C.UTF-8", "USER": "root", "SHELL": "/bin/bash"}
        base |= {"PATH": "/usr/bin:/bin:/usr/sbin", "PYTHONDONTWRITEBYTECODE": "1"}
        base["OMP_NUM_THREADS"] = str(self._effective_cpus or 2)
        if self._toolchain is not None:
            base |= self._toolchain.env
            base["PATH"] = f"{toolchain.PREFIX}/bin:{base['PATH']}"
        return base | (self._merge_env(env) or {})

    @property
    def _log(self) -> Path:
        return Path(self.trial_paths.trial_dir, "sandbox.log")

    def _write_record(self, stats: dict[str, Any]) -> None:
        versions = self._toolchain.versions if self._toolchain is not None else {}
        record = {"enforced": self.enforced, "toolchain": versions, **stats}
        (self.trial_paths.trial_dir / "sandbox.json").write_text(json.dumps(record, indent=1))
