"""Which kernels one call really ran on the device, and how much of its time the DSL's own took."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

Kernel = tuple[str, int, float]  # name, count, microseconds in all (or a share of the device's time)
# no kernel's name has the space that follows here
TRANSFER = re.compile(r"(?:Memcpy|Memset) ")
MOVES = re.compile(
    r"FillFunctor|fill_kernel|copy_kernel|CopyKernel|CatArrayBatchedCopy|memcpy|memset", re.IGNORECASE
)
CUT = 100  # a name of so many characters may be the beginning of a longer one


@dataclass(frozen=True)
class Profile:
    """One call: the device's work by name, longest first."""

    kernels: list[Kernel] = field(default_factory=list)


@dataclass(frozen=True)
class Share:
    """Shares of the device's time, which add up to 1: of the DSL's kernels, of others, of copies and fills."""

    dsl: float
    others: list[Kernel]
    transfers: list[Kernel]


def profile(call: Callable[[], object]) -> Profile:
    """Run a call once under CUPTI and wait for the device; what the call or CUPTI raises goes through."""
    from mkb_core.bench.cupti import record

    return gather(record(call))


def gather(records: Iterable[tuple[str, float]]) -> Profile:
    """Add up records of name and microseconds."""
    found: dict[str, tuple[int, float]] = {}
    for name, microseconds in records:
        count, time = found.get(name, (0, 0.0))
        found[name] = count + 1, time + microseconds
    return Profile(_by_time((name, count, time) for name, (count, time) in found.items()))


def _by_time(kernels: Iterable[Kernel]) -> list[Kernel]:
    return sorted(kernels, key=lambda kernel: (-kernel[2], kernel[0]))


def share(profile: Profile, dsl_names: dict[str, int]) -> Share:
    """Tell the DSL's kernels from the others.

    Args:
        profile: What ran.
        dsl_names: What the shim saw launched. More kernels of a name than it saw were launched past it, and the
            surplus, at the name's average time, is another's.
    """
    left = dict(dsl_names)
    total = sum(time for _, _, time in profile.kernels) or 1.0
    dsl, others, transfers = 0.0, [], []
    # the exact names first: a name that is cut must not take the launches of another that fits it wholly
    for name, count, time in sorted(profile.kernels, key=lambda kernel: kernel[0] not in dsl_names):
        if TRANSFER.match(name):
            transfers.append((name, count, time / total))
            continue
        own = _take(name, count, left)
        dsl += time / total * own / count
        if own < count:
            others.append((name, count - own, time / total * (count - own) / count))
    return Share(min(dsl, 1.0), _by_time(others), _by_time(transfers))


def _take(name: str, count: int, left: dict[str, int]) -> int:
    """Use up launches of the names that fit; how many of `count` they cover."""
    taken = 0
    for known in sorted(left, key=lambda known: known != name):
        if fits(name, known):
            part = min(count - taken, left[known])
            left[known] -= part
            taken += part
    return taken


def fits(profiled: str, symbol: str) -> bool:
    """Whether the profiler's name, perhaps demangled or cut, is that of a symbol, perhaps mangled or cut."""
    a, b = _plain(profiled), _plain(symbol)
    short, long = sorted((a, b), key=len)
    return a == b or (len(short) >= CUT and long.startswith(short))


def _plain(name: str) -> str:
    """The name alone, without return type, arguments, template arguments or mangling."""
    name = name.strip().removesuffix(".kd").removesuffix("...")
    mangled = re.match(r"_Z(?:L|N)?(\d{1,4})", name)
    if mangled:
        return name[mangled.end() : mangled.end() + int(mangled[1])]
    bare = re.sub(r"^(?:void|static|__global__)\s+", "", name)
    return re.split(r"[(<]", bare, maxsplit=1)[0] or bare


def _signature(name: str) -> str:
    """A kernel's name with its template arguments, which say what it computes, and without return type."""
    return re.sub(r"^void\s+", "", name.strip())


def covers(others: list[Kernel], baseline: Profile) -> bool:
    """Whether the others hold every computing kernel of the eager baseline, as often: then eager did it all."""
    held: dict[str, int] = {}
    for name, count, _ in others:
        held[_signature(name)] = held.get(_signature(name), 0) + count
    wanted: dict[str, int] = {}
    for name, count, _ in baseline.kernels:
        if not TRANSFER.match(name) and not MOVES.search(name):
            wanted[_signature(name)] = wanted.get(_signature(name), 0) + count
    return bool(wanted) and all(held.get(name, 0) >= count for name, count in wanted.items())
