"""The feedback channel: counting, what the agent sees, and both ways to move the bytes."""

import asyncio
import errno
import json
import socket
import struct
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from mkb_core.bench.verdict import Verdict
from mkb_core.run import feedback as channel
from mkb_core.run import submit
from mkb_core.run.feedback import Broker, ExecTransport, NotJudged, UnixSocketTransport, feedback

SECRET = "c0ffee" * 10
GOOD = {"status": "passed", "message": "valid"}


def verdict(**facts) -> Verdict:
    common = {"problem": "p28", "dsl": "tirx", "device": "cuda", "workload": "full", "source_sha256": SECRET}
    return Verdict.model_validate({**common, "status": "passed", "message": "valid", **facts})


async def good(number: int, source: bytes) -> dict:
    return dict(GOOD)


# --- what the agent sees


def test_valid_kernel_shows_times_and_error():
    seen = feedback(
        verdict(
            error_ratio=0.25,
            kernel_ms=1.0,
            kernel_p10_ms=0.9,
            kernel_p90_ms=1.1,
            baseline_ms=3.0,
            speedup=3.0,
            seconds=9.0,
            gpu="H200",
            versions={"torch": "2"},
        ),
        7,
    )
    assert seen == {
        "status": "passed",
        "message": "valid",
        "error_ratio": 0.25,
        "speedup": 3.0,
        "kernel_ms": 1.0,
        "kernel_p10_ms": 0.9,
        "kernel_p90_ms": 1.1,
        "baseline_ms": 3.0,
        "left": 7,
    }


def test_emulated_verdict_says_so():
    seen = feedback(verdict(device="emulated", workload="small"), 1)
    assert seen["note"] == "emulated: correctness only, no speed"
    assert "speedup" not in seen


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('File "/srv/run-7/a b/kernel.py", line 3', 'File "a b/kernel.py", line 3'),
        ("/opt/x/lib/python3.12/site-packages/cutlass/base.py:7", "cutlass/base.py:7"),
        ("rates 3/4 and a/b/c, see https://x.org/y/z", "rates 3/4 and a/b/c, see https://x.org/y/z"),
        ("\x1b[31mred\x1b[0m\x07 tab\there\r\nnext", "red tab\there\nnext"),
    ],
)
def test_message_names_nothing_of_the_host(text, shown):
    seen = feedback(verdict(status="runtime", message=text, output=text), 1)
    assert seen["message"] == seen["printed"] == shown
    assert SECRET not in json.dumps(seen)


def test_printed_output_is_cut():
    seen = feedback(verdict(output="a" * 3000 + "b" * 3000), 1)
    assert len(seen["printed"]) < 2100
    assert seen["printed"].startswith("aaa")
    assert seen["printed"].endswith("bbb")
    assert "4000 characters left out" in seen["printed"]


# --- the broker


def test_counts_on_disk_before_it_evaluates(tmp_path):
    async def evaluate(number, source):
        lines = (tmp_path / "ledger.jsonl").read_text().splitlines()
        assert [json.loads(line)["n"] for line in lines] == [number]
        assert (tmp_path / "01.py").read_bytes() == source == b"kernel"
        return GOOD

    async def scenario():
        broker = Broker(tmp_path, evaluate, 10)
        assert await broker.submit(b"kernel") == {**GOOD, "number": 1, "left": 9}

    asyncio.run(scenario())
    assert json.loads((tmp_path / "01.json").read_text()) == {**GOOD, "number": 1, "left": 9}
    line = json.loads((tmp_path / "ledger.jsonl").read_text())
    assert set(line) == {"n", "sha256", "bytes", "time"}
    assert line["bytes"] == 6


def test_the_eleventh_is_refused_and_one_is_judged_at_a_time(tmp_path):
    running = []

    async def evaluate(number, source):
        running.append(number)
        assert len(running) == 1
        await asyncio.sleep(0.001)
        running.pop()
        return GOOD

    async def scenario():
        broker = Broker(tmp_path, evaluate, 10)
        return await asyncio.gather(*(broker.submit(b"x") for _ in range(14)))

    replies = asyncio.run(scenario())
    assert sorted(r["number"] for r in replies if "number" in r) == list(range(1, 11))
    refused = [r for r in replies if "error" in r]
    assert refused == [{"error": "all 10 submissions are used", "left": 0}] * 4


def test_reopened_ledger_goes_on_counting(tmp_path):
    async def scenario(limit):
        return await Broker(tmp_path, good, limit).submit(b"x")

    assert asyncio.run(scenario(2))["number"] == 1
    assert asyncio.run(scenario(2)) == {**GOOD, "number": 2, "left": 0}
    assert "error" in asyncio.run(scenario(2))


def test_what_a_crash_cut_off_stays_counted(tmp_path):
    async def hang(number, source):
        await asyncio.sleep(60)

    async def crash():
        broker = Broker(tmp_path, hang, 10)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(broker.submit(b"x"), 0.05)  # asyncio.run then cancels what is left

    asyncio.run(crash())
    assert not (tmp_path / "01.json").exists()
    with (tmp_path / "ledger.jsonl").open("a") as file:
        file.write('{"n": 2, "sha')  # torn by a power cut

    async def again():
        return await Broker(tmp_path, good, 10).submit(b"y")

    assert asyncio.run(again()) == {**GOOD, "number": 3, "left": 7}
    assert len((tmp_path / "ledger.jsonl").read_text().splitlines()) == 3


def test_large_submission_is_refused_uncounted(tmp_path):
    async def scenario():
        broker = Broker(tmp_path, good, 10)
        reply = await broker.submit(b"x" * (channel.MAX_BYTES + 1))
        assert reply == {"error": "kernel.py is larger than 1048576 bytes", "left": 10}
        assert broker.used == 0

    asyncio.run(scenario())


def test_failing_verifier_ends_nothing_and_stays_out_of_sight(tmp_path):
    async def broken(number, source):
        raise OSError("/host/path is full")

    async def scenario():
        broker = Broker(tmp_path, broken, 10)
        return await broker.submit(b"x")

    reply = asyncio.run(scenario())
    assert reply == {"error": "the verifier failed, which says nothing about your kernel", "left": 9}
    assert "is full" in (tmp_path / "01.json").read_text()


class FullDisk:
    """os.fsync of a disk without room for the n-th write."""

    def __init__(self, failing):
        self.calls, self.failing = 0, failing

    def __call__(self, descriptor):
        self.calls += 1
        if self.calls in self.failing:
            raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("nth", [1, 2])  # the snapshot, the ledger
def test_full_disk_counts_nothing_and_says_so(tmp_path, monkeypatch, nth):
    async def scenario():
        broker = Broker(tmp_path, good, 2)
        await broker.submit(b"first")
        ledger = (tmp_path / "ledger.jsonl").read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", FullDisk({nth}))
            reply = await broker.submit(b"second")
        assert reply == {
            "error": "not stored (No space left on device), hence not counted; try again later",
            "left": 1,
        }
        assert (tmp_path / "ledger.jsonl").read_bytes() == ledger
        assert Broker(tmp_path, good, 2).left == 1
        assert (await broker.submit(b"third"))["number"] == 2  # there is room again

    asyncio.run(scenario())
    assert (tmp_path / "01.py").read_bytes() == b"first"
    assert (tmp_path / "02.py").read_bytes() == b"third"


def test_verdict_that_finds_the_disk_full_is_told_and_stored_later(tmp_path, monkeypatch):
    async def scenario():
        broker = Broker(tmp_path, good, 2)
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", FullDisk({3}))
            assert (await broker.submit(b"x"))["status"] == "passed"
        assert not (tmp_path / "01.json").exists()
        await broker.settle()

    asyncio.run(scenario())
    assert json.loads((tmp_path / "01.json").read_text()) == {**GOOD, "number": 1, "left": 1}
    assert not list(tmp_path.glob(".*"))


def test_settle_waits_for_the_one_in_progress_and_takes_no_more(tmp_path):
    async def slow(number, source):
        await asyncio.sleep(0.05)
        return GOOD

    async def scenario():
        broker = Broker(tmp_path, slow, 10)
        waiting = [asyncio.create_task(broker.submit(b"x")) for _ in range(2)]
        await asyncio.sleep(0.01)
        for task in waiting:
            task.cancel()  # the agent is gone
        await broker.settle()
        assert broker.used == 1

    asyncio.run(scenario())
    assert json.loads((tmp_path / "01.json").read_text())["status"] == "passed"


# --- transports


@pytest.fixture
def short(tmp_path_factory, monkeypatch):
    """A directory for the socket, and the client's paths turned to it."""
    directory = tmp_path_factory.mktemp("s")
    monkeypatch.setattr(submit, "SOCKET", directory / "s.sock")
    monkeypatch.setattr(submit, "MAILBOX", directory / "box")
    monkeypatch.setattr(submit, "KERNEL", directory / "kernel.py")
    return directory


def test_socket_carries_the_bytes(tmp_path, short, capsys):
    (short / "kernel.py").write_bytes(b"source \xff")

    async def scenario():
        async with UnixSocketTransport(Broker(tmp_path, good, 3), short):
            return await asyncio.to_thread(submit.main)

    assert asyncio.run(scenario()) == 0
    assert (tmp_path / "01.py").read_bytes() == b"source \xff"
    assert capsys.readouterr().out == "submission 1: valid\nsubmissions left: 2\n"
    assert not (short / "s.sock").exists()


def test_socket_survives_hostile_clients(tmp_path, short, monkeypatch):
    monkeypatch.setattr(channel, "READ_SECONDS", 0.1)

    def connect(data: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5)
            connection.connect(str(short / "s.sock"))
            connection.sendall(data)
            return connection.recv(65536)

    async def scenario():
        broker = Broker(tmp_path, good, 3)
        async with UnixSocketTransport(broker, short):
            assert b"larger than" in await asyncio.to_thread(connect, struct.pack("!I", 2**32 - 1))
            assert await asyncio.to_thread(connect, struct.pack("!I", 100) + b"half") == b""
            assert await asyncio.to_thread(connect, b"") == b""
            assert broker.used == 0
            flood = await asyncio.gather(*(asyncio.to_thread(connect, b"") for _ in range(8)))
            assert any(b"too many" in answer for answer in flood)
            assert (await asyncio.to_thread(submit.over_socket, b"x"))["number"] == 1

    asyncio.run(scenario())


class LocalEnvironment:
    """`exec` on this machine."""

    def __init__(self):
        self.calls = 0

    async def exec(self, command, timeout_sec=None, **_):
        self.calls += 1
        process = await asyncio.create_subprocess_exec("bash", "-c", command, stdout=subprocess.PIPE)
        try:
            out, _ = await process.communicate()
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
        return SimpleNamespace(stdout=out.decode(), return_code=process.returncode)


def test_mailbox_carries_the_bytes_with_few_calls(tmp_path, short):
    source = bytes(range(256)) * 4000
    environment = LocalEnvironment()
    box = short / "box"

    async def scenario():
        broker = Broker(tmp_path, good, 3)
        async with ExecTransport(broker, environment, long_poll=5, mailbox=str(box)):
            (box / "in" / "forged name.py").write_bytes(b"by hand")
            (box / "in" / "link.py").symlink_to("/etc/passwd")
            return await asyncio.to_thread(submit.over_mailbox, source)

    reply = asyncio.run(scenario())
    assert reply["status"] == "passed"
    assert (tmp_path / f"{reply['number']:02d}.py").read_bytes() == source
    assert environment.calls <= 5
    assert "root:" not in "".join(p.read_text(errors="replace") for p in tmp_path.glob("*.py"))


# --- the client


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "does not exist"),
        (b" \n", "is empty"),
        (b"x" * (submit.MAX_BYTES + 1), "larger than"),
        (b"x", "nobody takes submissions"),
    ],
)
def test_client_says_why_nothing_was_judged(short, capsys, content, reason):
    if content is not None:
        (short / "kernel.py").write_bytes(content)
    assert submit.main() == 2
    out = capsys.readouterr().out
    assert out.startswith("not judged: ")
    assert reason in out


def test_client_reports_a_broken_connection(short, capsys):
    (short / "kernel.py").write_bytes(b"x")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(short / "s.sock"))
        server.listen()

        def hang_up():
            server.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        assert submit.main() == 2
        thread.join()
    assert "the connection broke off" in capsys.readouterr().out


def test_client_shows_the_whole_feedback():
    seen = feedback(
        verdict(
            status="value",
            message="output: error 0.3, allowed 0.1\ndraw 2",
            error_ratio=3.0,
            device="emulated",
            workload="small",
            output="hello\nworld",
        ),
        4,
    )
    assert submit.render({**seen, "number": 6}).splitlines() == [
        "submission 6: value",
        "  output: error 0.3, allowed 0.1",
        "  draw 2",
        "  largest error: 3 times what is allowed",
        "  emulated: correctness only, no speed",
        "  printed by the submission:",
        "  | hello",
        "  | world",
        "submissions left: 4",
    ]


def test_client_shows_times():
    times = {"kernel_ms": 0.5, "kernel_p10_ms": 0.4, "kernel_p90_ms": 0.6, "baseline_ms": 2.0, "speedup": 4.0}
    text = submit.render({**feedback(verdict(**times), 9), "number": 1})
    assert "time 0.5000 ms (10 % of calls below 0.4000, 10 % above 0.6000); reference 2.0000 ms" in text
    assert "speedup 4.000" in text


def test_client_runs_on_the_standard_library_alone(tmp_path):
    done = subprocess.run([sys.executable, "-I", "-S", submit.__file__], env={}, capture_output=True, check=False)
    assert done.stdout.startswith(b"not judged: /app/kernel.py")


def test_what_the_host_could_not_judge_is_given_back_also_after_a_restart(tmp_path):
    faults = iter([True, False, False])

    async def evaluate(number, data):
        if next(faults):
            raise NotJudged("no GPU answers")
        return {"status": "passed", "message": ""}

    async def main():
        broker = Broker(tmp_path, evaluate, 2)
        refused = await broker.submit(b"a")
        assert "not counted" in refused["error"]
        assert (refused["left"], broker.used) == (2, 0)
        assert (await broker.submit(b"b"))["number"] == 2  # numbers are never used twice
        assert Broker(tmp_path, evaluate, 2).left == 1

    asyncio.run(main())
