"""Verdicts on one GPU: many may check, one times alone, nobody starves."""

import subprocess
import sys
import time

from mkb_core.bench.turn import Turn

HOLD = """
import sys, time
from pathlib import Path
from mkb_core.bench.turn import Turn
turn = Turn("cuda", Path(sys.argv[1]))
turn.share()
if sys.argv[2] == "alone":
    turn.alone()
print("held", flush=True)
time.sleep(60)
"""


def holder(directory, how):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory), how], stdout=subprocess.PIPE, text=True
    )
    return process


def held(process, seconds=10.0):
    """Whether it holds its turn by then."""
    import select

    return bool(select.select([process.stdout], [], [], seconds)[0])


def test_sharers_do_not_wait_for_each_other_and_one_that_times_waits_for_both(tmp_path):
    first, second = holder(tmp_path, "share"), holder(tmp_path, "share")
    try:
        assert held(first)
        assert held(second)
        timing = holder(tmp_path, "alone")
        assert not held(timing, 1)
        late = holder(tmp_path, "share")  # behind the one that waits, so that it does not starve
        assert not held(late, 1)
        first.kill(), second.kill()
        assert held(timing)
        assert not held(late, 0.5)
        timing.kill()  # a killed checker frees the device
        assert held(late)
    finally:
        for process in (first, second, timing, late):
            process.kill()
            process.wait()
            process.stdout.close()


def test_nobody_waits_on_the_emulated_device(tmp_path):
    started = time.monotonic()
    for _ in range(2):
        turn = Turn("emulated", tmp_path)
        turn.share()
        turn.alone()
    assert time.monotonic() - started < 1
    assert list(tmp_path.iterdir()) == []
