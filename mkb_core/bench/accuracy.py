"""The accuracy rule: a kernel may err three times as much as the reference does."""

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from mkb_core.bench.arena import poison

if TYPE_CHECKING:
    from torch import Tensor

    Piece = tuple[Tensor, Tensor, Tensor]  # the same part of actual, reference and anchor, [rows, columns]

PROMOTED = ("float32", "float16", "bfloat16")
CHUNK = 1 << 25  # elements compared at a time: a float64 temporary of them takes 256 MiB
MOST = 1e30  # row ratios stop here, so that they are finite in every record
# How far a row may pass its own allowance: the reference's error in a row is the largest of few samples, so it may
# be small by luck. Float32 sums of 1,024 terms added one by one, where the reference adds them as a tree, erred at
# most 8.6 times their row's allowance in 100,000 rows of 8 values (87 times in rows of 2, hence NARROW). Garbage
# is at 43 times the allowance of a bfloat16 row, 1 / (3 * 2**-7), and at millions in a float32 one.
ROW_SLACK = 16.0
GARBAGE = 0.5  # an error of this share of a row's largest value is over, even where eps is large (float8)
NARROW = 8  # a row of fewer values is joined with its neighbours


class Comparison(NamedTuple):
    """Whether one output passes, its error over its allowance, and what is wrong with it.

    The row fields are facts beside the verdict: how many of `rows` rows err over _slack times what the rule would
    allow to the row alone, and the worst row's error over that allowance (without the slack; at most MOST, never
    NaN). `rows` is 0 for integers, booleans, scalars and empty outputs.
    """

    ok: bool
    ratio: float
    message: str
    rows_over: int = 0
    rows: int = 0
    row_ratio: float = 0.0


def promote(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The anchor's inputs: float32, float16 and bfloat16 tensors as float64, everything else as it is."""
    import torch

    dtypes = {getattr(torch, name) for name in PROMOTED}
    return tuple(v.double() if isinstance(v, torch.Tensor) and v.dtype in dtypes else v for v in values)


def compare(
    actual: "Tensor", reference: "Tensor", anchor: "Tensor", factor: float, chunk: int = CHUNK
) -> Comparison:
    """Judge one output: actual and reference of one shape, dtype and device, the anchor of that shape.

    Integers and booleans must be equal. For floats, positions of NaN and of each infinity must agree with the
    reference; then max|actual - anchor| <= factor * max(max|reference - anchor|, eps(dtype) * max|anchor|) over
    the finite part (the benchmark's protocol; eps is torch.finfo(dtype).eps). Rows, along the last dimension, are
    held to the same rule one by one, without effect on `ok`. At most `chunk` elements are compared at a time.
    """
    import torch

    if not reference.dtype.is_floating_point:
        wrong = int(sum((a != r).sum() for a, r in _pairs(actual, reference, chunk)))
        return Comparison(wrong == 0, float(wrong > 0) * 2, f"{wrong} of {reference.numel()} elements differ")
    if reference.numel() == 0:
        return Comparison(True, 0.0, "no element to compare")
    width, eps = _row_width(tuple(reference.shape)), torch.finfo(reference.dtype).eps
    rows = reference.numel() // width if reference.dim() else 0
    groups = list(_groups((actual, reference, anchor), width, chunk))
    figures = _figures(_summary(g, factor, eps) for g in groups)
    if not all(math.isfinite(x) for x in figures[:3]):  # a NaN or an infinity somewhere: rare, and slower
        fault, over = _parity(groups)
        if fault:
            return Comparison(False, math.inf, fault, over if rows else 0, rows, MOST if rows else 0.0)
        figures = _figures(_summary(map(_finite, g), factor, eps) for g in groups)
    return _judge(figures, rows, factor, eps)


def _judge(figures: list[float], rows: int, factor: float, eps: float) -> Comparison:
    """The rule on the figures of _summary, over all groups."""
    error, own, scale, over, row_ratio = figures
    allowance = factor * max(own, eps * scale)
    ratio = 0.0 if error == 0 else error / allowance if allowance else math.inf
    text = f"max error {error:.3g}, allowance {allowance:.3g} ({ratio:.3g} times); largest exact value {scale:.3g}"
    if not rows:
        return Comparison(error <= allowance, ratio, text)
    if over:
        text += f"; {over:.0f} of {rows} rows err over {_slack(factor, eps):.3g} times what their own scale allows"
    return Comparison(error <= allowance, ratio, text, int(over), rows, min(row_ratio, MOST))


def _slack(factor: float, eps: float) -> float:
    return min(ROW_SLACK, max(1.0, GARBAGE / (factor * eps)))


def _summary(pieces: "Iterable[Piece]", factor: float, eps: float) -> "Tensor":
    """float64 [5] of a group of rows: max|actual - anchor|, max|reference - anchor|, max|anchor|, rows over, worst
    row ratio. One of the first three is NaN or infinite where any value is."""
    import torch

    peaks = (torch.stack((_peak(_gap(a, x)), _peak(_gap(r, x)), _peak(x.double()))) for a, r, x in pieces)
    error, own, scale = table = reduce(torch.maximum, peaks)
    ratio = torch.where(error > 0, error / (factor * torch.maximum(own, eps * scale)), 0.0)
    return torch.cat((table.amax(1), torch.stack(((ratio > _slack(factor, eps)).sum().double(), ratio.amax()))))


def _figures(summaries: "Iterable[Tensor]") -> list[float]:
    """The groups' figures as one list: the only transfer from the device."""
    import torch

    table = torch.stack(list(summaries))
    both = torch.cat((table[:, :3].amax(0), table[:, 3:4].sum(0), table[:, 4:].amax(0)))
    return [float(x) + 0.0 for x in both.tolist()]  # 0 for -0


def _parity(groups: "list[list[Piece]]") -> tuple[str, int]:
    """What is wrong with the positions of NaN and the infinities (empty: nothing), and in how many rows."""
    import torch

    counts = torch.stack([_mismatches(g) for g in groups]).sum(0).tolist()
    for name, extra, missing in zip(("NaN", "+inf", "-inf"), counts[:6:2], counts[1:6:2], strict=True):
        if extra or missing:
            return f"{extra} {name} where the reference has none, {missing} missing where it has them", counts[6]
    return "", 0


def _mismatches(pieces: "list[Piece]") -> "Tensor":
    """int64 [7] of a group: NaN too many and too few, +inf and -inf likewise, and rows that have any of these."""
    import torch

    counts: list[Tensor] = []
    rows: list[Tensor] = []
    for got, want in ((_plain(a), _plain(r)) for a, r, _ in pieces):
        found = [(f(got), f(want)) for f in (torch.isnan, torch.isposinf, torch.isneginf)]
        masks = [m for g, w in found for m in (g & ~w, w & ~g)]
        counts.append(torch.stack([m.sum() for m in masks]))
        rows.append(reduce(torch.logical_or, masks).any(1))
    return torch.cat((torch.stack(counts).sum(0), torch.stack(rows).any(0).sum()[None]))


def _finite(piece: "Piece") -> "Piece":
    """The piece with zeros where reference or anchor is not finite: those add nothing to any figure."""
    import torch

    actual, reference, anchor = map(_plain, piece)
    keep = reference.isfinite() & anchor.isfinite()
    return torch.where(keep, actual, 0), torch.where(keep, reference, 0), torch.where(keep, anchor, 0)


def _groups(tensors: "Piece", width: int, chunk: int) -> "Iterator[list[Piece]]":
    """Groups of whole rows of at most `chunk` elements; a row longer than that comes as several pieces."""
    flat = [t.reshape(-1, width) for t in tensors]
    for group in zip(*(_split(t, max(1, chunk // width)) for t in flat), strict=True):
        a, r, x = (_split(t, chunk, 1) for t in group)
        yield list(zip(a, r, x, strict=True))


def _row_width(shape: tuple[int, ...]) -> int:
    """Values in a row: the last dimension, with as many before it as it takes to have NARROW values."""
    width = 1
    for size in reversed(shape):
        width *= size
        if width >= NARROW:
            break
    return width


def _gap(values: "Tensor", anchor: "Tensor") -> "Tensor":
    """values - anchor in float64; the subtraction converts as it reads, without a copy of the values."""
    return _plain(values) - anchor.double()


def _peak(values: "Tensor") -> "Tensor":
    """max|values| of each row, NaN where the row has one; half the time of .abs().amax()."""
    import torch

    low, high = torch.aminmax(values, dim=1)
    return torch.maximum(high, -low)


def _plain(values: "Tensor") -> "Tensor":
    """float8 as float32, since it takes part in no promotion; anything else as it is."""
    return values.float() if values.dtype.is_floating_point and values.element_size() == 1 else values


def _pairs(a: "Tensor", b: "Tensor", chunk: int = CHUNK) -> "Iterator[tuple[Tensor, Tensor]]":
    return zip(_split(a.reshape(-1), chunk), _split(b.reshape(-1), chunk), strict=True)


def _split(values: "Tensor", size: int, dim: int = 0) -> "tuple[Tensor, ...]":
    return tuple(values.split(size, dim))  # type: ignore[no-untyped-call]


def poisoned_fraction(actual: "Tensor", reference: "Tensor") -> float:
    """Share, 0 to 1, of the elements that still hold the fill of before the call where the reference does not.

    Both of one dtype and shape, any. The fill is that of arena.poison. Its NaN, all bits set, comes out of no
    computation on a GPU; on a CPU torch itself rounds NaN to it in bfloat16.
    """
    import torch

    size = min(actual.element_size(), 8)
    mark = torch.empty(size, dtype=torch.uint8)
    poison(mark, str(actual.dtype).removeprefix("torch."))
    word = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    fill, words = mark.view(word).item(), actual.reshape(-1).view(word)
    pairs = _pairs(words, reference.reshape(-1).view(word))
    return float(sum((a == fill).logical_and_(r != fill).sum() for a, r in pairs)) / max(words.numel(), 1)


def diagnose(actual: "Tensor", reference: "Tensor", inputs: Mapping[str, Any]) -> str:
    """Why a wrong output is wrong, where that is certain, else an empty string; for outputs that failed only.

    actual and reference of one dtype and shape, any; inputs by name, tensors or numbers.
    """
    import torch

    share = poisoned_fraction(actual, reference)
    if share:
        nan = "is NaN or " if (actual.dtype, actual.device.type) == (torch.bfloat16, "cpu") else ""
        return f"{100 * share:.3g} % of the output {nan}was never written"
    if not any(bool(_plain(a).any()) for a, _ in _pairs(actual, actual)):
        return "output is all zeros"
    for name, value in inputs.items():
        fits = getattr(value, "shape", None) == actual.shape
        if fits and all(bool((_plain(a) == _plain(v.to(a.dtype))).all()) for a, v in _pairs(actual, value)):
            return f"output equals the input {name}"
    return ""
