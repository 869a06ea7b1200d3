"""Whose turn it is on the GPU: many verdicts may check at once, one times alone."""

import fcntl
import os
from pathlib import Path


class Turn:
    """A readers-writer lock between processes, fair to the writer: a gate stands before the lock itself.

    Held until the process ends, so that a killed checker frees it. On the emulated device nothing is timed and
    nobody waits.
    """

    def __init__(self, device: str, directory: Path = Path("/tmp")) -> None:
        self.device = device
        if device == "cuda":
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            name = f"metakernelbench-{os.getuid()}-{os.environ.get('CUDA_VISIBLE_DEVICES', 'all')}"
            self.gate, self.lock = (os.open(directory / f"{name}.{end}", flags, 0o600) for end in ("gate", "lock"))

    def share(self) -> None:
        """Beside other checkers; waits while one times or waits to time."""
        self._take(fcntl.LOCK_SH)

    def alone(self) -> None:
        """Nobody else on the device; waits for those that share it."""
        if self.device == "cuda":
            fcntl.flock(self.lock, fcntl.LOCK_UN)  # or two that share it would wait for each other
        self._take(fcntl.LOCK_EX)

    def _take(self, how: int) -> None:
        if self.device == "cuda":
            fcntl.flock(self.gate, fcntl.LOCK_EX)
            fcntl.flock(self.lock, how)
            fcntl.flock(self.gate, fcntl.LOCK_UN)
