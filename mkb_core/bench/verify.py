"""Judge one kernel: `python -m mkb_core.bench.verify p28 cutedsl kernel.py`."""

import argparse
import hashlib
import importlib.metadata
import io
import secrets
import signal
import sys
import time
import tokenize
import warnings
from pathlib import Path
from typing import Any, Literal

from mkb_core.bench import rules
from mkb_core.bench.dsl import get_dsl
from mkb_core.bench.gpu import Device, default_device, has_gpu
from mkb_core.bench.problems import Workload, get_problem
from mkb_core.bench.supervisor import Supervision, VerifierBroken
from mkb_core.bench.verdict import Verdict
from mkb_core.config import VerdictRules, protocol, unknown

MAX_SOURCE_BYTES = 1 << 18


class Verifier:
    """Judges submissions one at a time on one device, keeping its fork servers warm in between.

    Use it as a context manager; `verify` below is the one-shot form.
    """

    def __init__(
        self,
        device: Device | Literal["auto"] = "auto",
        limits: VerdictRules | None = None,
        *,
        strict: bool = False,
    ) -> None:
        """`strict` refuses verdicts on a host that does not enforce every wall around a submission."""
        self.device, self.strict = resolve(device), strict
        self.limits = limits or protocol().verdict
        self.supervision = Supervision(self.device)

    def __enter__(self) -> "Verifier":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the fork servers and everything below them."""
        self.supervision.close()

    def verify(
        self,
        problem: str,
        dsl: str,
        source: str | bytes,
        *,
        workload: Workload | None = None,
        seed: int | None = None,
    ) -> Verdict:
        """The verdict on a kernel.py given as text or bytes.

        Raises ValueError for a problem or DSL that does not exist. Whatever the submission does ends in a
        verdict; only a fault of the verifier itself gives the status `infra`, after one retry.
        """
        get_problem(problem), get_dsl(dsl)
        data = source.encode() if isinstance(source, str) else source
        workload = workload or ("full" if self.device == "cuda" else "small")
        if workload == "full" and self.device == "emulated":
            raise ValueError("the emulated device judges the small workload only; the full one needs a GPU")
        started = time.monotonic()
        seed = secrets.randbits(62) if seed is None else seed
        facts = static_fault(dsl, data) or self.facts_without_rules(problem, dsl, data, workload, seed)
        return Verdict(
            problem=problem,
            dsl=dsl,
            device=self.device,
            workload=workload,
            source_sha256=hashlib.sha256(data).hexdigest(),
            seconds=round(time.monotonic() - started, 3),
            seed=seed,
            versions=versions(dsl),
            **facts,
        )

    def facts_without_rules(
        self, problem: str, dsl: str, data: bytes, workload: str = "small", seed: int = 1
    ) -> dict[str, Any]:
        """Status, message and measurements from the processes alone: they must hold where no static rule helps."""
        job = {
            "strict": self.strict,
            "problem": problem,
            "dsl": dsl,
            "device": self.device,
            "workload": workload,
            "seed": seed,
            "rules": self.limits.model_dump(),
        }
        for last in (False, True):
            try:
                return self.supervision.judge(job, data)
            except VerifierBroken as broken:
                self.supervision.close()
                self.supervision = Supervision(self.device)
                if last:
                    return {"status": "infra", "message": str(broken)}
        raise AssertionError("unreachable")


def resolve(device: str) -> Device:
    """`cuda` or `emulated` for `auto`; raises ValueError for `cuda` where there is no GPU."""
    if device == "auto":
        return default_device()
    if device == "cuda" and not has_gpu():
        raise ValueError("no CUDA device here; use the device emulated")
    if device not in ("cuda", "emulated"):
        raise unknown("device", device, ("auto", "cuda", "emulated"))
    return "cuda" if device == "cuda" else "emulated"


def static_fault(dsl: str, data: bytes) -> dict[str, Any] | None:
    """What the source alone shows to be wrong: a syntax error, no `solve`, or a broken rule."""
    if len(data) > MAX_SOURCE_BYTES:
        return {"status": "build", "message": f"kernel.py is larger than {MAX_SOURCE_BYTES} bytes"}
    try:
        # Python decodes by the cookie in the file: another one would run other text than the rules read
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        if encoding not in ("utf-8", "utf-8-sig"):
            return {"status": "build", "message": f"kernel.py declares the encoding {encoding}; it must be UTF-8"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's remarks on a submission's style are not ours to print
            findings = rules.check(data.decode(encoding), dsl)
    except UnicodeDecodeError as error:
        return {"status": "build", "message": f"kernel.py is not UTF-8: {error}"}
    except (SyntaxError, RecursionError, MemoryError) as error:
        return {"status": "build", "message": f"kernel.py does not parse: {error or type(error).__name__}"}
    if not findings:
        return None
    status = "build" if all(f.rule == "solve" for f in findings) else "rule"
    return {"status": status, "message": "\n".join(map(str, findings[:5]))}


def verify(
    problem: str,
    dsl: str,
    source: str | bytes,
    device: Device | Literal["auto"] = "auto",
    *,
    strict: bool = False,
    **options: Any,
) -> Verdict:
    """One verdict in processes of its own; see Verifier and Verifier.verify for the options."""
    with Verifier(device, strict=strict) as verifier:
        return verifier.verify(problem, dsl, source, **options)


def versions(dsl: str) -> dict[str, str]:
    """Versions of what the verdict depends on; a package that is on the path without metadata is left out."""
    found = {}
    for name in ("torch", get_dsl(dsl).package, "apache-tvm-ffi"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def report(verdict: Verdict) -> str:
    """The verdict as a person reads it."""
    lines = [f"{verdict.problem} {verdict.dsl} on {verdict.device} ({verdict.workload}): {verdict.status}"]
    # the submission's words may hold what moves a terminal's cursor
    shown = "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in verdict.message)
    lines += [f"  {line}" for line in shown.splitlines()]
    if verdict.error_ratio is not None and verdict.draws:
        calls = f"{verdict.draws} call{'s' * (verdict.draws != 1)}"
        lines.append(f"  {calls} compared, worst error {verdict.error_ratio:.3g} of its allowance")
    if verdict.speedup is not None:
        lines.append(
            f"  kernel {verdict.kernel_ms:.4f} ms (p10 {verdict.kernel_p10_ms:.4f}, p90 "
            f"{verdict.kernel_p90_ms:.4f}), eager {verdict.baseline_ms:.4f} ms, speedup {verdict.speedup:.2f}"
        )
        lines.append(f"  {verdict.timed} timed calls; a call that does nothing takes {verdict.nothing_ms:.4f} ms")
    elif verdict.device == "emulated":
        lines.append("  emulated: correctness and rules on the small workload; no speed")
    if verdict.dsl_share is not None:
        others = "; ".join(verdict.other_kernels[:3])
        lines.append(
            f"  the DSL's kernels take {verdict.dsl_share:.1%} of the device time" + f"; {others}" * bool(others)
        )
    if verdict.unenforced:
        lines.append(f"  this host does not enforce: {', '.join(verdict.unenforced)}")
    if verdict.output:
        lines.append(f"  printed: {verdict.output[:400]!r}")
    lines.append(f"  {verdict.seconds} s, seed {verdict.seed}")
    return "\n".join(lines)


PHASES = {
    "start": "fork servers, the source's static rules",
    "reference": "inputs and reference of one draw, in the checker",
    "load": "fresh runners, each in its box, import kernel.py",
    "compile": "the first calls of the three runners, side by side",
    "draws": "correctness draws against the float64 anchor",
    "policy": "a fresh process agrees; launches suppressed, replaced by copies, spoiled: what the DSL contributes",
    "baseline": "a runner in a box imports the reference",
    "waiting": "for other verdicts on this GPU to leave it alone",
    "timing": "timed calls of kernel and eager baseline in alternating blocks, every output checked",
}


def explain(verdict: Verdict) -> str:
    """What each phase of the verdict did, with its seconds."""
    known = sum(verdict.phases.values())
    phases = {"start": round((verdict.seconds or 0) - known, 3), **verdict.phases}
    return "\n".join(f"  {seconds:8.3f} s  {name:9}  {PHASES.get(name, '')}" for name, seconds in phases.items())


def main(arguments: list[str] | None = None) -> int:
    """Command line; exit code 0 for a valid kernel, 1 for an invalid one, 2 for a wrong call."""
    parser = argparse.ArgumentParser(prog="python -m mkb_core.bench.verify", description=__doc__)
    parser.add_argument("problem", help="problem id, for example p28")
    parser.add_argument("dsl", help="cutedsl or tirx")
    parser.add_argument("kernel", type=Path, help="the kernel.py to judge")
    parser.add_argument("--device", choices=("auto", "cuda", "emulated"), default="auto")
    parser.add_argument("--workload", choices=("full", "small"), help="default: full on cuda, small emulated")
    parser.add_argument("--seed", type=int, help="repeat the draws of an earlier verdict")
    parser.add_argument("--explain", action="store_true", help="print the phases with their times")
    parser.add_argument("--strict", action="store_true", help="refuse where this host does not enforce every wall")
    parser.add_argument("--json", action="store_true", help="print the record")
    given = parser.parse_args(arguments)
    # so that `timeout` and Ctrl-C end the processes of the verdict and remove its directory
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        source = given.kernel.read_bytes()
        verdict = verify(
            given.problem,
            given.dsl,
            source,
            given.device,
            strict=given.strict,
            workload=given.workload,
            seed=given.seed,
        )
    except (ValueError, OSError) as error:
        parser.exit(2, f"error: {error}\n")
    except KeyboardInterrupt:
        parser.exit(130, "interrupted\n")
    print(verdict.model_dump_json(indent=1) if given.json else report(verdict))
    if given.explain:
        print(explain(verdict))
    return 0 if verdict.passed else 1


if __name__ == "__main__":
    sys.exit(main())
