"""What a submission can reach from its box: each wall is tried from inside, past the static rules."""

import os
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

from mkb_core.bench import supervisor
from mkb_core.bench.gpu import default_device
from mkb_core.bench.verify import Verifier
from mkb_core.config import ROOT, protocol

pytestmark = pytest.mark.dsl
LIMITS = protocol().verdict.model_copy(update={"first_call_seconds": 20, "call_seconds": 10})
TELL = "    raise RuntimeError(f'told: {%s}')\n"


@pytest.fixture(scope="module")
def verifier():
    with Verifier(default_device(), LIMITS) as warm:
        yield warm


def facts(verifier, body):
    return verifier.facts_without_rules("p36", "cutedsl", body.encode())


def told(verifier, imports, expression):
    """The value of an expression inside, as text."""
    message = facts(verifier, f"import {imports}\ndef solve(x, w):\n" + TELL % expression)["message"]
    found = re.search(r"RuntimeError: told: (.*)", message, re.DOTALL)
    assert found, message
    return found[1].strip()


def test_every_wall_stands_here(verifier):
    assert facts(verifier, "def solve(x, w): return 1")["unenforced"] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="a user other than root keeps its own uid in the box")
def test_another_user_without_capabilities(verifier):
    assert told(verifier, "os", "os.getuid()").startswith("64")
    status = told(verifier, "pathlib", 'pathlib.Path("/proc/self/status").read_text()')
    assert re.search(r"CapEff:\s+0+\b", status)
    assert re.search(r"NoNewPrivs:\s+1", status)
    assert re.search(r"Seccomp:\s+2", status)


def test_no_other_process_is_seen(verifier):
    assert int(told(verifier, "os", 'len([p for p in os.listdir("/proc") if p.isdigit()])')) <= 2


def test_the_repository_is_the_package_alone_and_nothing_of_the_user_is_there(verifier):
    assert (
        told(verifier, "os", f"sorted(set(os.listdir({str(ROOT)!r})) - {{'.venv', '.tools'}})") == "['mkb_core']"
    )
    for path in ("/root/.ssh", "/home", "/var", "/run", "/root/.bash_history"):
        assert told(verifier, "os", f"os.path.exists({path!r})") == "False"


@pytest.mark.parametrize("path", ["/etc/x", "/usr/x", "/x", "/dev/x", str(ROOT / "mkb_core" / "x")])
def test_nothing_of_the_system_can_be_written(verifier, path):
    message = facts(verifier, f"def solve(x, w):\n    open({path!r}, 'w')\n")["message"]
    assert re.search("Permission denied|Read-only file system", message), message
    assert not Path(path).exists()


def test_a_full_disk_is_the_submissions_own(verifier):
    body = "def solve(x, w):\n    f = open('/tmp/full', 'wb')\n    while True: f.write(bytes(1 << 24))\n"
    result = facts(verifier, body)
    assert result["status"] == "runtime"
    assert re.search("No space left|File too large|signal 25", result["message"]), result
    assert not Path("/tmp/full").exists()


def test_memory_is_limited(verifier, monkeypatch):
    monkeypatch.setattr(supervisor, "MEMORY_LIMIT", 2 << 30)
    body = "kept = []\ndef solve(x, w):\n    while True: kept.append(b'x' * (1 << 26))\n"
    result = facts(verifier, body)
    assert (result["status"], "used more than 2 GiB" in result["message"]) == ("runtime", True), result


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ("import os\ndef solve(x, w):\n    os.fork()\n", "process"),
        ("import subprocess\ndef solve(x, w):\n    subprocess.run(['/bin/true'])\n", "process"),
        ("import os\ndef solve(x, w):\n    os.execv('/bin/true', ['true'])\n", "process"),
        ("import os\nos.posix_spawn('/bin/true', ['true'], {})\n", "process"),
        ("import socket\ndef solve(x, w):\n    socket.socket()\n", "network"),
        ("import socket\ndef solve(x, w):\n    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)\n", "network"),
        ("import ctypes\ndef solve(x, w):\n    ctypes.CDLL(None).ptrace(16, 1, 0, 0)\n", "tampering"),
        (
            "import ctypes\ndef solve(x, w):\n    ctypes.CDLL(None).process_vm_readv(1, 0, 0, 0, 0, 0)\n",
            "tampering",
        ),
    ],
)
def test_a_refused_system_call_is_a_broken_rule_with_its_name(verifier, body, rule):
    result = facts(verifier, body)
    assert result["status"] == "rule", result
    assert result["message"].startswith(f"rule `{rule}`: the system call `"), result


def test_caught_refusals_count_too(verifier):
    body = (
        "import contextlib, os\ndef solve(x, w):\n    with contextlib.suppress(OSError): os.fork()\n    return x\n"
    )
    assert facts(verifier, body)["message"].startswith("rule `process`")


NAMED = "import ctypes\ndef solve(x, w):\n    ctypes.CDLL(None).prctl(15, {})\n    {}\n"


@pytest.mark.parametrize("name", [b"\xff\xfe", b") R 1 1", b""])
def test_a_process_may_call_itself_anything(verifier, name):
    message = facts(verifier, NAMED.format(f"bytes({list(name)})", "raise KeyError('named')"))["message"]
    assert "KeyError: 'named'" in message


def test_a_name_does_not_hide_memory(verifier, monkeypatch):
    monkeypatch.setattr(supervisor, "MEMORY_LIMIT", 2 << 30)
    hoard = "kept = [b'x' * (1 << 26) for _ in range(400)]"
    assert "used more than 2 GiB" in facts(verifier, NAMED.format("b'RssAnon: 0 kB'", hoard))["message"]


def test_nothing_of_the_fork_server_is_open_inside(verifier):
    listed = told(
        verifier, "glob, os", "[os.readlink(p) for p in glob.glob('/proc/self/fd/*') if os.path.lexists(p)]"
    )
    assert "eventpoll" not in listed
    assert listed.count("pipe:") == 2  # what it prints


def test_threads_are_ordinary(verifier):
    body = "import threading\nt = threading.Thread(target=print)\nt.start(), t.join()\ndef solve(x, w): return 1\n"
    assert "no kernel of the DSL was launched" in facts(verifier, body)["message"]


def test_strict_refuses_where_a_wall_is_missing(verifier, monkeypatch):
    from mkb_core.bench.watch import Watch

    handle = Watch.handle

    def without_landlock(self, ready):
        handle(self, ready)
        if self.unenforced is not None:
            self.unenforced = ["landlock"]

    monkeypatch.setattr(Watch, "handle", without_landlock)
    body = "def solve(x, w): return 1"
    assert facts(verifier, body)["unenforced"] == ["landlock"]
    monkeypatch.setattr(verifier, "strict", True)
    result = facts(verifier, body)
    assert result["status"] == "infra"
    assert result["message"] == "--strict: this host does not enforce landlock"
