"""What the sandbox keeps out and in, tried from the inside through Harbor's interface."""

import asyncio
import contextlib
import importlib.util
import json
import logging
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import pytest
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.config import AgentConfig, TaskConfig, TrialConfig, VerifierConfig
from harbor.models.trial.config import EnvironmentConfig as TrialEnvironment
from harbor.models.trial.paths import TrialPaths
from harbor.trial.trial import Trial

from mkb_core import seccomp
from mkb_core.run import bwrap, cgroups, watchdog
from mkb_core.run.environments import choose
from mkb_core.run.execserver import NOT_STARTED
from mkb_core.run.sandbox import BubblewrapEnvironment, SandboxDied
from mkb_core.run.toolchain import interpreter

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.skipif(not shutil.which("bwrap"), reason="no bwrap: run `apt-get install bubblewrap tmux`"),
]

REPOSITORY = Path(__file__).parents[2]
SECRET = "sk-host-secret-that-must-stay-outside"
HAS_TORCH = any(Path(p, "torch").is_dir() for p in sys.path)


class Box:
    """A started sandbox with an event loop of its own, for tests that are not coroutines."""

    def __init__(self, directory, *, cpus=2, memory_mb=512, network="no-network", mounts=None, **kwargs):
        paths = TrialPaths(directory / "trial")
        paths.mkdir()
        (directory / "environment").mkdir()
        mode = NetworkMode(network)
        self.trial = paths.trial_dir
        self.environment = BubblewrapEnvironment(
            environment_dir=directory / "environment",
            environment_name="box",
            session_id="box__env",
            trial_paths=paths,
            task_env_config=EnvironmentConfig(network_mode=mode, cpus=cpus, memory_mb=memory_mb, workdir="/app"),
            network_policy=NetworkPolicy(network_mode=mode),
            logger=logging.getLogger("box"),
            mounts=mounts,
            **{"dsl": False, **kwargs},
        )
        self.runner = asyncio.Runner()

    def __enter__(self):
        try:
            self.run(self.environment.start(force_build=False))
        except BaseException:
            self.runner.close()
            raise
        self.pid = self.environment._process.pid
        return self

    def __exit__(self, *exc):
        self.run(self.environment.stop(delete=True))
        self.runner.close()

    def run(self, coroutine):
        return self.runner.run(coroutine)

    def sh(self, command, timeout_sec=60, **kwargs):
        return self.run(self.environment.exec(command, timeout_sec=timeout_sec, **kwargs))

    def out(self, command):
        result = self.sh(command)
        assert result.return_code == 0, result
        return result.stdout

    def python(self, code, command="python3 -"):
        """The JSON that `code` prints when it runs inside."""
        text = f"{command} <<'CODE'\n{textwrap.dedent(code)}\nCODE"
        return json.loads(self.out(text))

    def init_pid(self):
        return next(iter(watchdog.descendants(self.pid)))


@pytest.fixture(scope="module")
def submit(tmp_path_factory):
    """A directory with a listening socket that greets, as the submission channel has."""
    directory = tmp_path_factory.mktemp("channel")
    directory.chmod(0o755)
    (directory / "note.txt").write_text("hello")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(directory / "s.sock"))
        (directory / "s.sock").chmod(0o666)
        server.listen()
        server.settimeout(60)

        def serve():
            with contextlib.suppress(OSError), server.accept()[0] as connection:
                connection.sendall(b"served")

        thread = threading.Thread(target=serve)
        thread.start()
        yield directory
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.fixture(scope="module")
def box(tmp_path_factory, submit):
    mounts = [
        {"type": "bind", "source": str(submit), "target": "/submit", "read_only": True},
        {"type": "bind", "source": str(submit), "target": "/logs/agent"},
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", SECRET)
        with Box(
            tmp_path_factory.mktemp("box"),
            mounts=mounts,
            memory_mb=4096,
            dsl=HAS_TORCH,
            max_output_mb=1,
            max_download_mb=1,
        ) as started:
            yield started


# ---- network ---------------------------------------------------------------------------------------


def test_no_address_is_reachable(box):
    assert box.python("""
        import json
        lines = open('/proc/net/dev').read().splitlines()[2:]
        print(json.dumps([line.split(':')[0].strip() for line in lines]))
    """) == ["lo"]
    abstract = f"\0mkb-test-{os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as v4,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as v6,
        socket.socket(socket.AF_UNIX) as unix,
    ):
        unix.bind(abstract)
        unix.listen()
        targets = [
            ("AF_INET", ["1.1.1.1", 53]),
            ("AF_INET", ["169.254.169.254", 80]),
            ("AF_INET6", ["2606:4700:4700::1111", 53]),
            ("AF_INET", list(v4.getsockname()[:2])),
            ("AF_INET6", list(v6.getsockname()[:2])),
            ("AF_UNIX", abstract),
        ]
        for family, address in targets[3:]:  # these do answer on the host, so a refusal means isolation
            with socket.socket(getattr(socket, family)) as client:
                client.connect(tuple(address) if isinstance(address, list) else address)
        reached = box.python(f"""
            import json, socket
            reached = []
            for family, address in {targets!r} + [('AF_INET', None)]:
                own = socket.create_server(('127.0.0.1', 0))
                client = socket.socket(getattr(socket, family))
                client.settimeout(3)
                if address is None:
                    address = own.getsockname()  # the control: its own loopback works
                try:
                    client.connect(tuple(address) if isinstance(address, list) else address)
                    reached.append(address == own.getsockname() or address)
                except OSError:
                    pass
            try:
                socket.getaddrinfo('example.com', 443)
                reached.append('dns')
            except OSError:
                pass
            print(json.dumps(reached))
        """)
    assert reached == [True]


def test_sockets_and_calls_that_would_leave_the_namespaces_are_refused(box):
    errors = box.python("""
        import ctypes, errno, json, os, platform, socket
        errors = {}
        def attempt(name, call):
            try:
                call()
                errors[name] = None
            except OSError as exc:
                errors[name] = errno.errorcode[exc.errno]
        attempt('vsock', lambda: socket.socket(40, socket.SOCK_STREAM))
        attempt('packet', lambda: socket.socket(17, socket.SOCK_RAW))
        attempt('raw', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
        attempt('unshare user', lambda: os.unshare(os.CLONE_NEWUSER))
        attempt('unshare net', lambda: os.unshare(os.CLONE_NEWNET))
        libc = ctypes.CDLL(None, use_errno=True)
        def raw(number, *args):
            if libc.syscall(number, *args) < 0:
                raise OSError(ctypes.get_errno(), '')
        attempt('io_uring', lambda: raw(425, 8, 0))
        attempt('fsopen', lambda: raw(430, b'tmpfs', 0))
        attempt('bpf', lambda: raw(321 if platform.machine() == 'x86_64' else 280, 0, 0, 0))
        clone = 56 if platform.machine() == 'x86_64' else 220
        attempt('clone user', lambda: raw(clone, 0x10000000 | 17, 0, 0, 0, 0) )
        print(json.dumps(errors))
    """)
    assert errors.pop("clone user") in ("ENOSPC", "EPERM")  # max_user_namespaces is used up
    assert errors == {
        "vsock": "EAFNOSUPPORT",
        "packet": "EAFNOSUPPORT",
        "raw": "EPERM",
        "unshare user": "EPERM",
        "unshare net": "EPERM",
        "io_uring": "ENOSYS",
        "fsopen": "EPERM",
        "bpf": "EPERM",
    }


def test_tasks_that_want_a_network_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no-network"):
        Box(tmp_path, network="public")


# ---- files -----------------------------------------------------------------------------------------


def test_only_harmless_devices(box):
    names = set(box.out("ls /dev").split())
    assert {"null", "zero", "urandom"} <= names
    assert names <= {
        *("core fd full null ptmx pts random shm".split()),
        *("stderr stdin stdout tty urandom zero console".split()),
    }


def test_no_host_path_is_writable(box):
    places = ["/", "/usr", "/usr/bin", "/usr/local", "/usr/lib", "/etc", "/bin", "/lib", "/opt", "/var", "/dev"]
    places += ["/proc/sys/kernel", "/sys", "/submit", str(interpreter().parents[1] / "lib" / interpreter().name)]
    places += ["/opt/dsl", "/opt/dsl/bin", "/opt/dsl/lib/python3.12/site-packages/torch"] if HAS_TORCH else []
    free = ["/app", "/tests", "/logs/agent", "/tmp", "/root", "/root/.cache", "/dev/shm", "/var/tmp"]
    written = box.python(f"""
        import json, os
        written = []
        for place in {[*places, *free]!r}:
            try:
                os.makedirs(place, exist_ok=True)
                open(place + '/mkb-probe', 'w').close()
                written.append(place)
            except OSError:
                pass
        for path in ('/etc/passwd', '/etc/ld.so.cache', '/submit/note.txt', '/usr/bin/env', '/bin/bash',
                     '{interpreter()}', '/etc/sandbox_init.py', '/proc/sys/kernel/core_pattern',
                     '/proc/sysrq-trigger'):
            try:
                open(path, 'r+b').close()
                written.append(path)
            except OSError:
                pass
            try:
                os.remove(path)
                written.append(path)
            except OSError:
                pass
        print(json.dumps(written))
    """)
    assert written == free
    for command in (
        "mount -o remount,rw /usr",
        "mount -t tmpfs none /mnt",
        "mknod /tmp/disk b 254 0",
        "chroot /tmp /bin/true",
        "umount /usr/local",
    ):
        assert box.sh(command).return_code != 0, command
    assert not [p for p in (*places, *free) if os.path.lexists(f"{p}/mkb-probe")]  # False where closed to us


def test_every_mount_of_the_host_is_read_only(box):
    lines = [line.split(" - ") for line in box.out("cat /proc/self/mountinfo").splitlines()]
    mounts = [(left.split()[4], left.split()[5].split(","), right.split()[0]) for left, right in lines]
    assert len(mounts) > 20
    writable = {(place, kind) for place, options, kind in mounts if "ro" not in options}
    devices = {(place, kind) for place, kind in writable if place.startswith("/dev/") and place != "/dev/shm"}
    assert writable - devices == {("/proc", "proc"), *((place, "tmpfs") for place in bwrap.TMPFS_MB)}


def test_no_host_file_is_visible(box):
    seen = box.python(f"""
        import json, os
        hidden = [{str(REPOSITORY)!r}, '/home', '/mnt', '/media', '/srv', '/boot', '/sys', '/etc/shadow',
                  '/etc/resolv.conf', '/etc/ssh', '/var/log', {str(Path(__file__))!r}]
        print(json.dumps({{
            'hidden': [p for p in hidden if os.path.exists(p)],
            'root': sorted(os.listdir('/')),
            'local': os.listdir('/usr/local'),
            'etc': sorted(os.listdir('/etc')),
        }}))
    """)
    assert seen["hidden"] == [] or Path("/home") in interpreter().parents
    allowed = "app bin dev etc harbor lib lib64 logs opt proc root run sbin solution submit tests tmp usr var"
    assert set(seen["root"]) <= {*allowed.split(), interpreter().parts[1]}
    assert set(seen["etc"]) <= {
        *bwrap.HOST_ETC,
        *(Path(p).name for p in bwrap.made_etc("")),
    }
    if Path("/usr/local") not in interpreter().parents:
        assert seen["local"] == []
    home = box.out("ls -A /root | grep -v -e '^.cache$' -e '^mkb-probe$' || true").split()
    assert set(home) <= set(interpreter().parts)


def test_the_harness_cannot_be_imported(box):
    modules = ("mkb_core", "harbor", "litellm", "papermill", "pytest")
    assert all(importlib.util.find_spec(m) for m in modules[:2])
    code = f"import importlib.util as u; print([m for m in {modules} if u.find_spec(m)])"
    for python in ("python3", str(interpreter())):
        assert box.out(f'{python} -c "{code}"') == "[]\n"


def test_mounts(box, tmp_path):
    assert box.out("cat /submit/note.txt") == "hello"
    assert "note.txt" not in box.out("ls /logs/agent")  # mounts below /logs are not taken
    greeting = box.python("""
        import json, socket
        with socket.socket(socket.AF_UNIX) as client:
            client.connect('/submit/s.sock')
            print(json.dumps(client.recv(100).decode()))
    """)
    assert greeting == "served"
    with pytest.raises(ValueError, match="read-only bind"):
        Box(tmp_path, mounts=[{"type": "bind", "source": "/tmp", "target": "/x"}])


# ---- identity --------------------------------------------------------------------------------------


def test_capabilities_are_empty_and_the_uid_is_nobody_on_the_host(box):
    status = dict(line.split(":\t", 1) for line in box.out("cat /proc/self/status").splitlines())
    assert [int(status[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")] == [0] * 5
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    host = Path(f"/proc/{box.init_pid()}/status").read_text()
    uids = {int(u) for line in host.splitlines() if line.startswith("Uid:") for u in line.split()[1:]}
    assert len(uids) == 1
    assert 0 not in uids
    if os.geteuid() == 0:
        assert uids <= set(bwrap.UIDS)


def test_pid_1_is_out_of_reach(box):
    outcome = box.python("""
        import ctypes, errno, json, os, time
        outcome = {}
        os.kill(1, 9)
        names = ['environ', 'mem', 'root/etc/passwd', *(f'fd/{fd}' for fd in os.listdir('/proc/1/fd'))]
        for name in names:
            try:
                open(f'/proc/1/{name}')
                outcome[name] = 'open'
            except OSError as exc:
                outcome[name] = errno.errorcode[exc.errno]
        libc = ctypes.CDLL(None, use_errno=True)
        outcome['ptrace'] = libc.ptrace(16, 1, 0, 0)
        outcome['inherited'] = [fd for fd in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{fd}')]
        print(json.dumps(outcome))
    """)
    assert outcome.pop("inherited") == ["0", "1", "2"]
    assert outcome.pop("ptrace") == -1
    assert len(outcome) > 4  # its log, its socket, ...
    assert set(outcome.values()) <= {"EACCES", "EPERM"}
    assert box.out("echo alive") == "alive\n"


def test_keys_of_the_host_stay_outside(box):
    assert os.environ["OPENAI_API_KEY"] == SECRET
    found = box.out(f"env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; echo ={SECRET[:3]}")
    assert f"={SECRET[:3]}" in found
    assert SECRET not in found
    written = b"".join(p.read_bytes() for p in box.trial.rglob("*") if p.is_file())
    assert SECRET.encode() not in written


def test_the_record_names_what_is_enforced(box):
    record = json.loads((box.trial / "sandbox.json").read_text())
    assert record["enforced"] == box.environment.enforced
    assert {"memory", "cpu", "pids", "network", "seccomp", "uid"} <= set(record["enforced"])


# ---- limits ----------------------------------------------------------------------------------------

LIMITS = pytest.mark.parametrize("use_cgroups", [True, False])


@LIMITS
def test_memory_limit(tmp_path, use_cgroups):
    hog = "import time; b = [bytearray(16 << 20) for _ in range({n})]; time.sleep({s}); print('survived')"
    with Box(tmp_path, memory_mb=256, use_cgroups=use_cgroups) as box:
        kind = box.environment.enforced["memory"]
        assert kind.startswith("watchdog" if not use_cgroups else ("cgroup", "watchdog"))
        assert "survived" in box.out(f'python3 -c "{hog.format(n=6, s=0.5)}"')
        alone = box.sh(f'python3 -c "{hog.format(n=50, s=1)}"')
        assert "survived" not in alone.stdout
        # none is above the limit, all together are
        many = box.sh(f'for i in 1 2 3 4 5; do python3 -c "{hog.format(n=6, s=2)}" & done; wait')
        assert many.stdout.count("survived") < 5
        assert box.out("echo alive") == "alive\n"
        # files are memory too, and full disks must leave the sandbox usable
        box.sh("for d in /tmp /app /root /dev/shm; do head -c 300M /dev/zero > $d/fill; done")
        assert box.out("echo alive") == "alive\n"


@LIMITS
def test_process_limit(tmp_path, use_cgroups):
    with Box(tmp_path, pids=64, use_cgroups=use_cgroups) as box:
        with contextlib.suppress(RuntimeError):
            box.sh("bomb() { bomb | bomb & }; bomb; sleep 1", timeout_sec=3)
        counts = []
        for _ in range(5):
            counts.append(len(watchdog.descendants(box.pid)))
            subprocess.run(["true"], check=True)
            time.sleep(0.05)
        assert 30 < max(counts) <= 66
        assert box.run(box.environment.kill_all()) == 0
        assert len(watchdog.descendants(box.pid)) == 1
        assert box.out("echo fine") == "fine\n"


def test_a_command_that_cannot_fork_fails_like_a_command(tmp_path):
    with Box(tmp_path, pids=8) as box:
        greedy = "import os, time\nwhile True:\n try:\n  if os.fork() == 0: time.sleep(60)\n except OSError: pass"
        box.sh(f"python3 -c '{greedy}' > /dev/null 2>&1 & sleep 0.5")
        deadline = time.monotonic() + 10
        while (result := box.sh("true")).return_code == 0 and time.monotonic() < deadline:
            time.sleep(0.1)  # the shell itself held a place that the greedy one has yet to take
        assert result.return_code == NOT_STARTED
        assert "Resource temporarily unavailable" in result.stderr
        assert box.run(box.environment.kill_all()) == 0
        assert box.sh("true").return_code == 0


@LIMITS
def test_cpu_limit(tmp_path, use_cgroups):
    with Box(tmp_path, cpus=1, use_cgroups=use_cgroups) as box:
        how = box.environment.enforced["cpu"]
        if how.startswith("affinity"):
            assert len(os.sched_getaffinity(box.init_pid())) == 1
            return
        group = box.environment._cgroup
        quota = next(q for d in group.dirs for q in (d / "cpu.cfs_quota_us", d / "cpu.max") if q.exists())
        assert quota.read_text().split()[0] == str(cgroups.CPU_PERIOD_US)
        # a busy machine may not grant even the one core: whether the quota binds shows with less
        quota.write_text(str(cgroups.CPU_PERIOD_US // 20))
        burn = "import time; e = time.time() + 1\nwhile time.time() < e: pass"
        box.sh(f"for i in 1 2 3; do python3 -c '{burn}' & done; wait")
        stats = group.stats()["cpu.stat"].split()
        assert int(stats[stats.index("nr_throttled") + 1]) > 0


def test_the_output_is_capped(box):
    result = box.sh("head -c 3000000 /dev/zero | tr '\\0' a; exit 7")
    assert (len(result.stdout), result.return_code) == (1 << 20, 7)
    assert f"{3000000 - (1 << 20)} bytes of stdout dropped" in result.stderr


def test_a_timeout_is_a_runtime_error_and_ends_the_command(box):
    started = time.monotonic()
    with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
        box.sh("sleep 4242", timeout_sec=1)
    box.sh("sleep 4343 & echo started")  # holds the pipe open, and does not hold us up
    assert time.monotonic() - started < 10
    running = box.out("ps -eo args")
    assert "sleep 4242" not in running
    assert "sleep 4343" in running


# ---- files in and out ------------------------------------------------------------------------------


def test_files_round_trip(box, tmp_path):
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "a.txt").write_text("a")
    (tree / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (tree / "run.sh").chmod(0o755)
    box.run(box.environment.upload_dir(tree, "/app/tree"))
    box.run(box.environment.upload_file(tree / "run.sh", "/app/deep/er/run.sh"))
    assert box.out("/app/tree/run.sh; /app/deep/er/run.sh; cat /app/tree/sub/a.txt") == "ran\nran\na"
    box.run(box.environment.download_file("/app/tree/sub/a.txt", tmp_path / "x" / "a.txt"))
    box.run(box.environment.download_dir("/app/tree", tmp_path / "back"))
    assert (tmp_path / "x" / "a.txt").read_text() == (tmp_path / "back/sub/a.txt").read_text() == "a"


def test_long_commands_fit(box):
    text = "é" * 40_000  # 240 kB as a message; the kernel takes arguments up to 128 kB
    assert box.out(f"printf %s {text} | wc -c").strip() == "80000"


def test_input_that_nobody_reads_holds_nothing_up(box):
    started = time.monotonic()
    command = ["/bin/bash", "-c", "setsid sleep 20 <&0 & sleep 20"]  # the first one outlives the timeout's kill
    with pytest.raises(RuntimeError, match="timed out"):
        box.run(box.environment._run(command, limit=1, timeout=1, stdin=bytes(1 << 20)))
    assert time.monotonic() - started < 10


TRICKS = {
    "ln -s /etc/passwd /app/t": "regular",
    "ln -s /dev/zero /app/t": "regular",
    "mkfifo /app/t": "regular",
    "mkdir /app/t": "regular",
    "true": "regular",
    "head -c 2M /dev/zero > /app/t": "larger",
    "truncate -s 4G /app/t": "larger",
}


@pytest.mark.parametrize("trick", TRICKS)
def test_what_is_no_small_regular_file_does_not_leave(box, tmp_path, trick):
    box.out(f"rm -rf /app/t; {trick}")
    with pytest.raises(RuntimeError, match=TRICKS[trick]):
        box.run(box.environment.download_file("/app/t", tmp_path / "kernel.py"))
    assert not os.path.lexists(tmp_path / "kernel.py")


def test_directories_leave_without_links_and_overwrite_nothing(box, tmp_path):
    target = tmp_path / "agent"
    target.mkdir()
    (target / "trajectory.json").write_text("the harness's own")
    outside = tmp_path / "outside"
    outside.write_text("untouched")
    box.out(f"""rm -rf /logs/agent/*; cd /logs/agent; echo forged > trajectory.json; echo log > ok.log
        ln -s {outside} link; mkfifo pipe; mkdir d; echo x > d/x.bin; ln -s /etc etc; mkdir empty""")
    box.run(box.environment.download_dir("/logs/agent", target))
    found = {str(p.relative_to(target)) for p in target.rglob("*") if not p.is_dir()}
    assert found == {"trajectory.json", "ok.log", "d/x.bin"}
    assert (target / "trajectory.json").read_text() == "the harness's own"
    environment = box.environment
    args = {"source_dir": "/logs/agent", "target_dir": tmp_path / "f"}
    box.run(environment.download_dir_filtered(**args, include=["*.log"], protect=["d/x.bin"]))
    assert {p.name for p in (tmp_path / "f").rglob("*.*")} == {"ok.log", "x.bin"}
    args["target_dir"] = tmp_path / "e"
    box.run(environment.download_dir_with_exclusions(**args, exclude=["d", "*.json"]))
    assert {p.name for p in (tmp_path / "e").rglob("*")} == {"ok.log"}
    box.out("truncate -s 4G /logs/agent/giant")
    with pytest.raises(RuntimeError, match="larger"):
        box.run(environment.download_dir("/logs/agent", tmp_path / "g"))


# ---- life and death --------------------------------------------------------------------------------


def host_processes(marker):
    """Processes of the host whose command line holds `marker`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if marker.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def test_nothing_survives_stop(tmp_path):
    marker = f"7{os.getpid()}.25"
    with Box(tmp_path) as box:
        box.sh(f"(setsid nohup sleep {marker} >/dev/null 2>&1 &)")
        assert len(host_processes(marker)) == 1
        group = box.environment._cgroup
        directories = list(group.dirs)
    assert host_processes(marker) == []
    assert [d for d in directories if d.exists()] == []
    with pytest.raises(SandboxDied):
        asyncio.run(box.environment.exec("true"))


def test_a_killed_harness_takes_its_sandbox_along(tmp_path):
    marker = f"8{os.getpid()}.25"
    script = f"""
        import pathlib, sys, time
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_sandbox import Box
        with Box(pathlib.Path({str(tmp_path)!r})) as box:
            box.sh("(setsid nohup sleep {marker} >/dev/null 2>&1 &)")
            print("started", flush=True)
            time.sleep(60)
    """
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as harness:
        assert harness.stdout.readline() == "started\n"
        assert len(host_processes(marker)) == 1
        harness.send_signal(signal.SIGKILL)
        harness.wait()
    deadline = time.monotonic() + 5
    while host_processes(marker) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert host_processes(marker) == []
    deadline = time.monotonic() + 5
    while left := list(cgroups.ROOT.glob(f"*/mkb-{harness.pid}-*")):  # empty ones, until somebody sweeps
        assert time.monotonic() < deadline, left
        cgroups.sweep()


ROOTLESS = """
    import os, pathlib, sys
    sys.path.insert(0, {tests!r})
    from test_sandbox import Box, watchdog
    with Box(pathlib.Path({place!r}), memory_mb=256, pids=64) as box:
        enforced = box.environment.enforced
        assert os.geteuid() == {uid} and enforced["uid"] == "{uid}", enforced
        assert "CapEff:\t0000000000000000" in box.out("cat /proc/self/status")
        assert box.sh("ls {repository}").return_code != 0
        assert box.out("python3 -c 'b = bytearray(90 << 20); print(1)'") == "1\\n"
        hog = "import time; b = [bytearray(16 << 20) for _ in range(60)]; time.sleep(1); print('survived')"
        assert "survived" not in box.sh(f'python3 -c "{{hog}}"').stdout
        box.sh("for d in /tmp /app /root /dev/shm; do head -c 300M /dev/zero > $d/fill; done")
        files = "import time; b = bytearray(200 << 20); time.sleep(1); print('survived')"
        assert "survived" not in box.sh(f'python3 -c "{{files}}"').stdout  # full disks count as memory
        forks = "import os, time\\nfor _ in range(200):\\n if os.fork() == 0: time.sleep(60)"
        assert "Resource temporarily unavailable" in box.sh(f"python3 -c $'{{forks}}'").stderr
        assert 30 < len(watchdog.descendants(box.pid)) <= 65
        assert box.run(box.environment.kill_all()) == 0
        print("passed", enforced["memory"], enforced["pids"], sep="; ")
"""


def as_user(uid, argv, needed):
    """`argv` as `uid`, in a private mount namespace where only `needed` is left of closed directories."""
    closed = {}
    for path in needed:
        if ancestors := [a for a in reversed(path.parents) if not a.stat().st_mode & 0o001]:
            closed.setdefault(ancestors[0], []).append(path)
    script = ["set -e", "umask 022"]
    for top, paths in closed.items():
        at = shlex.quote(str(top))
        script += ["stage=$(mktemp -d)", "mount -t tmpfs none $stage", "mkdir $stage/top"]
        script += [f"mount --rbind {at} $stage/top", f"mount -t tmpfs -o mode=755 none {at}"]
        for path in paths:
            source, place = shlex.quote(str(path.relative_to(top))), shlex.quote(str(path))
            script += [f"mkdir -p {place}", f"mount --rbind $stage/top/{source} {place}"]
        script += ["umount -l $stage", "rmdir $stage"]
    shell = ["sh", "-c", "\n".join([*script, 'exec "$@"']), "sh"]
    return ["unshare", "--mount", "--propagation", "private", *shell, *bwrap.drop_argv(uid), *argv]


def test_without_root():
    """The same by an unprivileged user, who has no cgroups either where this is a root's machine."""
    uid = bwrap.free_uid() if os.geteuid() == 0 else os.geteuid()
    with tempfile.TemporaryDirectory(prefix="mkb-rootless-") as place:
        values = {"tests": str(Path(__file__).parent), "place": place, "uid": uid, "repository": REPOSITORY}
        argv = [sys.executable, "-c", textwrap.dedent(ROOTLESS).format(**values)]
        if os.geteuid() == 0:
            os.chown(place, uid, uid)
            argv = as_user(uid, argv, [interpreter().parents[1], REPOSITORY, Path(sys.prefix)])
        env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "HOME": "/nonexistent"}
        done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=120, check=False)
    assert done.stdout.startswith("passed; "), (done.stdout, done.stderr[-3000:])
    if os.geteuid() == 0:
        assert "watchdog" in done.stdout
        assert "RLIMIT_NPROC" in done.stdout


def test_the_sandbox_that_dies_is_reported(tmp_path):
    with Box(tmp_path) as box:
        os.kill(box.init_pid(), signal.SIGKILL)
        with pytest.raises(SandboxDied):
            box.sh("sleep 5")


def test_tmux_in_a_login_shell(box):
    box.out("tmux -L t new-session -d -x 160 -y 40 'bash --login'")
    box.out("tmux -L t send-keys 'echo path=$PATH' Enter")
    deadline = time.monotonic() + 15
    while "path=/" not in (screen := box.out("tmux -L t capture-pane -p")):
        assert time.monotonic() < deadline, screen
        time.sleep(0.1)
    assert f"path={box.environment._env()['PATH']}" in screen


def test_an_interpreter_in_usr_local_can_be_bound(tmp_path):
    """As in the python images of Docker; the rest of /usr/local stays hidden and nothing is writable."""
    (tmp_path / "python3.12").write_text("the interpreter")
    source = tmp_path / "python3.12"
    layout = bwrap.Layout({"/tmp": 1}, binds=[(source, "/usr/local/bin/python3.12")])
    with (tmp_path / "filter").open("w+b") as file:
        file.write(seccomp.program())
        file.seek(0)
        argv, _ = bwrap.bwrap_argv(layout, {source: source}, file.fileno())
        script = (
            "cat /usr/local/bin/python3.12; ls -A /usr/local /usr/local/bin; touch /usr/local/x || echo closed"
        )
        argv.remove("--as-pid-1")
        command = [*argv, "/bin/sh", "-c", script]
        done = subprocess.run(command, pass_fds=[file.fileno()], capture_output=True, text=True, timeout=30)
    assert done.stdout.split() == "the interpreter/usr/local: bin /usr/local/bin: python3.12 closed".split()


# ---- what the machine lacks ------------------------------------------------------------------------


def test_preflight_passes_here():
    BubblewrapEnvironment.preflight()


def test_preflight_names_the_install_line(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    with pytest.raises(SystemExit, match="apt-get install bubblewrap tmux"):
        BubblewrapEnvironment.preflight()


def test_preflight_says_what_to_do_without_user_namespaces(monkeypatch):
    monkeypatch.setattr(bwrap, "ISOLATION", ("--no-such-flag",))
    with pytest.raises(SystemExit, match="apparmor_restrict_unprivileged_userns"):
        BubblewrapEnvironment.preflight()


def test_a_failed_start_shows_why_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(bwrap, "ISOLATION", ("--no-such-flag",))
    before = set(cgroups.ROOT.glob(f"*/mkb-{os.getpid()}-*"))
    box = Box(tmp_path)
    with pytest.raises(RuntimeError, match=r"(?s)Unknown option --no-such-flag.*apparmor_restrict"), box:
        pass  # trials do not go through `preflight`, so the reason has to come with the failure
    assert set(cgroups.ROOT.glob(f"*/mkb-{os.getpid()}-*")) == before


def test_unwritable_cgroups_enforce_nothing(tmp_path):
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
    v2 = cgroups.Cgroup.create(memory_mb=1, cpus=1, pids=1, root=tmp_path)
    assert v2.enforced == {}
    v1 = cgroups.Cgroup.create(memory_mb=1, cpus=1, pids=1, root=tmp_path / "absent")
    assert (v1.enforced, v1.join_argv()) == ({}, [])


def test_cgroup_v2_files(tmp_path, monkeypatch):
    written = {}
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
    monkeypatch.setattr(cgroups, "_write", lambda path, value: written.update({path.name: value}) or True)
    group = cgroups.Cgroup.create(memory_mb=2, cpus=3, pids=4, root=tmp_path)
    assert (written["memory.max"], written["memory.swap.max"]) == (str(2 << 20), "0")
    assert (written["cpu.max"], written["pids.max"]) == ("300000 100000", "4")
    assert set(group.enforced) == {"memory", "cpu", "pids"}


# ---- through Harbor --------------------------------------------------------------------------------

TASK = """
schema_version = "1.3"
artifacts = ["/app/kernel.py"]
[agent]
timeout_sec = 60
[verifier]
[environment]
network_mode = "no-network"
cpus = 2
memory_mb = 512
workdir = "/app"
"""


@pytest.mark.filterwarnings("ignore:Task.checksum will be deprecated:DeprecationWarning")  # Harbor's own use
def test_a_trial_of_harbor(tmp_path, submit, monkeypatch):
    monkeypatch.setenv("HARBOR_TELEMETRY", "0")
    task = tmp_path / "task"
    files = {"task.toml": TASK, "instruction.md": "Write it.", "environment/Dockerfile": "FROM scratch\n"}
    files["tests/test.sh"] = "exit 0\n"  # not run, but Harbor asks for it
    files["solution/solve.sh"] = "#!/bin/bash\ncp /submit/note.txt /app/kernel.py\n"
    for name, text in files.items():
        (task / name).parent.mkdir(parents=True, exist_ok=True)
        (task / name).write_text(text)
    mount = {"type": "bind", "source": str(submit), "target": "/submit", "read_only": True}
    place = TrialEnvironment(import_path=choose("bwrap"), kwargs={"pids": 99, "dsl": False}, mounts=[mount])
    config = TrialConfig(
        task=TaskConfig(path=task),
        trials_dir=tmp_path / "trials",
        trial_name="one",
        agent=AgentConfig(name="oracle"),
        environment=place,
        verifier=VerifierConfig(disable=True),
    )

    async def trial():
        return await (await Trial.create(config)).run()

    result = asyncio.run(trial())
    assert result.exception_info is None, result.exception_info
    directory = tmp_path / "trials" / "one"
    assert (directory / "artifacts/app/kernel.py").read_text() == "hello"
    assert "99" in json.loads((directory / "sandbox.json").read_text())["enforced"]["pids"]


# ---- the toolchain inside --------------------------------------------------------------------------

SOLUTIONS = REPOSITORY / "problems/mlp_norm/p36_rmsnorm_h128/solutions"
COMPILE = {
    "cutedsl": """
        import torch, kernel
        ptx = kernel.compiled(128).__ptx__
        print(".target sm_90a" in str(ptx) and "rmsnorm" in str(ptx) and not torch.cuda.is_available())
    """,
    "tirx": """
        import tvm, kernel
        from tvm.support.nvcc import compile_cuda
        with tvm.target.Target({"kind": "cuda", "arch": "sm_90a"}) as target:
            module = tvm.IRModule({"main": kernel.make(128)})
            source = tvm.compile(module, target=target, tir_pipeline="tirx").mod.imports[0].inspect_source()
        ptx = compile_cuda(source, target_format="ptx", arch="sm_90a", compiler="nvrtc")
        print("rmsnorm" in source and b".target sm_90a" in bytes(ptx))
    """,
}
DSL = [
    pytest.mark.dsl,
    pytest.mark.skipif(not HAS_TORCH, reason="the extra `dsl` is not installed: run `uv sync --extra dsl`"),
]


@pytest.mark.parametrize("dsl", [pytest.param(name, marks=DSL) for name in COMPILE])
def test_solutions_compile_inside_without_a_gpu(box, dsl):
    box.run(box.environment.upload_file(SOLUTIONS / f"{dsl}.py", "/app/kernel.py"))
    command = f"CUTE_DSL_KEEP=ptx CUTE_DSL_DUMP_DIR=/tmp python3 - <<'CODE'\n{textwrap.dedent(COMPILE[dsl])}\nCODE"
    result = box.sh(command, timeout_sec=120)
    assert result.stdout.endswith("True\n"), result
