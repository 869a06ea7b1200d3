"""Hand in /app/kernel.py and print the verdict. Runs inside the sandbox, on the standard library alone."""

import json
import secrets
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

KERNEL = Path("/app/kernel.py")
SOCKET = Path("/submit/s.sock")
MAILBOX = Path("/tmp/.submit")
MAX_BYTES = 1 << 20
POLL_SECONDS = 0.1


class NoAnswer(Exception):
    """Why there is no verdict."""


def main() -> int:
    """Exit code 0 for a valid kernel, 1 for an invalid one, 2 without a verdict."""
    try:
        data = read(KERNEL)
        send = over_socket if SOCKET.exists() else over_mailbox
        reply = send(data)
    except NoAnswer as reason:
        print(f"not judged: {reason}")
        return 2
    print(render(reply))
    if "error" in reply:
        return 2
    return 0 if reply["status"] == "passed" else 1


def read(path: Path) -> bytes:
    """The kernel's source; an empty one is not worth a submission."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise NoAnswer(f"{path} does not exist; no submission used") from None
    except OSError as error:
        raise NoAnswer(f"{path} cannot be read ({error}); no submission used") from None
    if not data.strip():
        raise NoAnswer(f"{path} is empty; no submission used")
    if len(data) > MAX_BYTES:
        raise NoAnswer(f"{path} is larger than {MAX_BYTES} bytes; no submission used")
    return data


def over_socket(data: bytes) -> dict[str, Any]:
    """Send length and bytes over the socket, and wait for the answer."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(SOCKET))
            connection.sendall(struct.pack("!I", len(data)) + data)
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        reply: dict[str, Any] = json.loads(answer)
        return reply
    except (OSError, ValueError) as error:
        raise NoAnswer(f"the connection broke off ({error}); try again") from None


def over_mailbox(data: bytes) -> dict[str, Any]:
    """Leave the bytes where the host looks for them, and wait for the answer."""
    if not (MAILBOX / "in").is_dir():
        raise NoAnswer("nobody takes submissions here")
    name = secrets.token_hex(8)
    draft, answer = MAILBOX / "in" / f"{name}.part", MAILBOX / "out" / f"{name}.json"
    draft.write_bytes(data)
    draft.replace(MAILBOX / "in" / f"{name}.py")
    while not answer.exists():
        time.sleep(POLL_SECONDS)
    reply: dict[str, Any] = json.loads(answer.read_text())
    answer.unlink()
    return reply


def render(reply: dict[str, Any]) -> str:
    """The answer as an agent reads it."""
    if "error" in reply:
        return f"not judged: {reply['error']}\nsubmissions left: {reply['left']}"
    lines = [f"submission {reply['number']}: {'valid' if reply['status'] == 'passed' else reply['status']}"]
    if reply["status"] != "passed":
        lines += [f"  {line}" for line in reply["message"].splitlines()]
    if "error_ratio" in reply:
        lines.append(f"  largest error: {reply['error_ratio']:.3g} times what is allowed")
    if "speedup" in reply:
        lines.append(f"  time {reply['kernel_ms']:.4f} ms (10 % of calls below {reply['kernel_p10_ms']:.4f},")
        lines[-1] += f" 10 % above {reply['kernel_p90_ms']:.4f}); reference {reply['baseline_ms']:.4f} ms"
        lines.append(f"  speedup {reply['speedup']:.3f}")
    if "note" in reply:
        lines.append(f"  {reply['note']}")
    if "printed" in reply:
        lines += ["  printed by the submission:", *(f"  | {line}" for line in reply["printed"].splitlines())]
    return "\n".join([*lines, f"submissions left: {reply['left']}"])


if __name__ == "__main__":
    sys.exit(main())
