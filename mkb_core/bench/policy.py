"""The untimed runs: is it the DSL that computes the outputs, and does a fresh process agree?"""

import json
from typing import TYPE_CHECKING

from mkb_core.bench import wire
from mkb_core.bench.participant import Called, Participant, Rejected

if TYPE_CHECKING:
    from mkb_core.bench.checker import Checker
    from mkb_core.bench.devicekernels import Profile

MOST_TENSORS = 4  # of a launch, whose roles the policy runs swap or spoil
ONE_SHOT_CALLS = 3
ONE_SHOT_FACTOR, ONE_SHOT_SECONDS = 2.0, 200e-6  # what a fresh process may be slower than the official time


class Suppressed:
    """A fresh process whose DSL launches are dropped: no output may be valid."""

    def __init__(self, checker: "Checker", policy: Participant) -> None:
        self.checker, self.policy = checker, policy
        self.launches = self.pointers = 0

    def begin(self) -> None:
        """Start the first call, which may compile, and do not wait for it."""
        self.given = self.checker.draw("policy 0")
        self.policy.begin(self.given, "call 1")

    def run(self) -> None:
        """Raises Rejected `bypass` where an output is valid or solve sees the difference."""
        try:
            self.judge(self.policy.finish(), wire.CALL)
            for i in range(1, self.checker.rules.policy_calls):
                self.call(f"call {i + 1}", wire.CALL)
        except Rejected as rejected:
            if rejected.status == "bypass":
                raise
            raise Rejected(
                "bypass",
                f"solve does not return where the DSL's launches are suppressed ({rejected}); "
                "it must not test what its kernels did",
            ) from None
        self.checker.facts["launches"] = self.launches
        if self.launches == 0:
            raise Rejected("bypass", "no kernel of the DSL was launched where launches are suppressed")
        for source, destination in pairs(self.pointers):
            try:
                self.call("copy", wire.PAIR + 16 * source + destination)
            except Rejected as rejected:
                if rejected.status == "bypass":
                    raise

    def call(self, what: str, task: int) -> None:
        """One call; a valid result is a bypass."""
        self.given = self.checker.draw(f"policy {self.policy.number}")
        self.judge(self.policy.call(self.given, what, task), task)

    def judge(self, called: Called, task: int) -> None:
        """Raises Rejected where the outputs are valid, or after a copy valid up to one scale and one offset."""
        self.launches = max(self.launches, called.report.launches)
        self.pointers = max(self.pointers, called.report.pointers)
        checker = self.checker
        try:
            checker.specification(called.report, self.policy.outputs, "call")
        except Rejected:
            return
        how_far, fault = "still valid", checker.fault(self.given, called.outputs)[0]
        if fault and task != wire.CALL:
            scaled = checker.rescaled(self.given, called.outputs)
            how_far += " up to a scale and an offset"
            fault = checker.fault(self.given, scaled)[0] if scaled else fault
        if not fault:
            count = f"{called.report.launches} launches" if called.report.launches else "no launch at all"
            how = "suppressed" if task == wire.CALL else "replaced by a copy of one of its buffers to another"
            message = f"the outputs are {how_far} with every launch of the DSL {how} ({count})"
            raise Rejected("bypass", f"{message}: the DSL must do the computation")


class Again:
    """A fresh process that remembers nothing: its results and its time must agree; then it is looked into."""

    def __init__(self, checker: "Checker", again: Participant) -> None:
        self.checker, self.again = checker, again
        self.seconds: list[float] = []

    def begin(self) -> None:
        """Start the first call and do not wait for it."""
        self.given = self.checker.draw("fresh process, call 1")
        self.again.begin(self.given, "fresh process, call 1")

    def run(self) -> None:
        """Checked calls."""
        checker, name = self.checker, "fresh process, call"
        called = self.again.finish()
        checker.check(self.again, self.given, called, f"{name} 1", "unstable")
        for i in range(ONE_SHOT_CALLS if checker.timed else 0):
            self.seconds.append(checker.checked_call(self.again, f"{name} {i + 2}", "unstable").seconds)

    def perturb(self, pointers: int) -> None:
        """Spoil what each launch left in one of its tensors: for some tensor, the outputs must change."""
        tensors = min(pointers, MOST_TENSORS)
        for i in range(tensors):
            draw = self.checker.draw(f"perturbed {i}")
            try:
                called = self.again.call(draw, "a call with spoiled results", wire.PERTURB + i)
                self.checker.specification(called.report, self.again.outputs, "call")
            except Rejected:
                return
            if self.checker.fault(draw, called.outputs)[0]:
                return
        if tensors:
            raise Rejected(
                "bypass",
                "the outputs are valid although the results of the DSL's launches were spoiled: nothing uses them",
            )

    def profile(self) -> None:
        """Which kernels the device ran, and whether eager PyTorch did the whole work beside them."""
        from mkb_core.bench.devicekernels import covers, profile, share

        draw = self.checker.draw("profile")
        ours = read_profile(self.again.call(draw, "a call under the profiler", wire.PROFILE).report.text)
        if ours is None:  # it shows nothing: no permission, or another tool attached
            return
        result = share(*ours)
        self.checker.facts["dsl_share"] = round(result.dsl, 4)
        self.checker.facts["other_kernels"] = [f"{n} x{c}: {s:.1%}" for n, c, s in result.others[:5]]
        # not in the baseline's process, which it could slow down
        if covers(result.others, profile(lambda: self.checker.reference(draw))):
            raise Rejected(
                "bypass",
                "eager PyTorch runs every kernel of the reference, and the DSL's take "
                f"{result.dsl:.1%} of the device time beside it: the DSL must do the computation",
            )

    def agrees(self, official: float) -> None:
        """Raises Rejected where a process that has not seen the earlier calls is much slower."""
        if self.seconds and min(self.seconds) > ONE_SHOT_FACTOR * official + ONE_SHOT_SECONDS:
            raise Rejected(
                "rule",
                f"rule `phase`: a fresh process takes {min(self.seconds) * 1e3:.3f} ms a call, the timed one "
                f"{official * 1e3:.3f} ms; a call's work must not depend on earlier calls",
            )


class Untimed:
    """Both untimed runs of a verdict."""

    def __init__(self, checker: "Checker", policy: Participant, fresh: Participant) -> None:
        self.checker, self.parts = checker, (policy, fresh)
        self.suppressed, self.again = Suppressed(checker, policy), Again(checker, fresh)

    def started(self) -> "Untimed":
        """Both loaded, and their first calls begun."""
        for part in self.parts:
            part.loaded()
        self.begin()
        return self

    def begin(self) -> None:
        """Start the first calls, which may compile, and do not wait for them."""
        self.again.begin()
        self.suppressed.begin()

    def run(self) -> None:
        """Raises Rejected at the first fault; ends both processes."""
        self.suppressed.run()
        self.checker.supervisor.end("policy")
        self.again.run()
        self.again.perturb(self.suppressed.pointers)
        if self.checker.timed:
            self.again.profile()
        self.checker.supervisor.end("fresh")


def read_profile(text: str) -> "tuple[Profile, dict[str, int]] | None":
    """The runner's words about its device kernels, each field checked: they come from an untrusted process."""
    from mkb_core.bench.devicekernels import Profile

    try:
        data = json.loads(text)
        kernels = [(str(n), int(c), float(t)) for n, c, t in data["kernels"]]
        names = {str(n): int(c) for n, c in data["names"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    counts = [*(c for _, c, _ in kernels), *names.values()]
    sound = all(0 < c < 1 << 31 for c in counts) and all(0 <= t < 1e12 for _, _, t in kernels)
    return (Profile(kernels), names) if kernels and sound else None


def write_profile(profile: "Profile", names: dict[str, int], most: int = 24, letters: int = 120) -> str:
    """The same as a short text, the kernels that took longest first."""
    kernels = sorted(profile.kernels, key=lambda k: -k[2])[:most]
    return json.dumps(
        {
            "kernels": [(n[:letters], c, round(t, 3)) for n, c, t in kernels],
            "names": {n[:letters]: c for n, c in list(names.items())[:most]},
        }
    )


def pairs(pointers: int) -> list[tuple[int, int]]:
    """Ordered pairs of a launch's first tensors."""
    count = min(pointers, MOST_TENSORS)
    return [(i, j) for i in range(count) for j in range(count) if i != j]
