"""The accuracy rule: a kernel may err three times as much as the reference does."""

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

PROMOTED = ("float32", "float16", "bfloat16")


class Comparison(NamedTuple):
    """Whether one output passes, its error over its allowance, and what is wrong with it."""

    ok: bool
    ratio: float
    message: str


def promote(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The anchor's inputs: float32, float16 and bfloat16 tensors as float64, everything else as it is."""
    import torch

    dtypes = {getattr(torch, name) for name in PROMOTED}
    return tuple(v.double() if isinstance(v, torch.Tensor) and v.dtype in dtypes else v for v in values)


def compare(actual: "Tensor", reference: "Tensor", anchor: "Tensor", factor: float) -> Comparison:
    """Judge one output of the right shape, dtype and device.

    Integers and booleans must be equal. For floats, positions of NaN and of each infinity must agree with the
    reference; then max|actual - anchor| <= factor * max(max|reference - anchor|, eps(dtype) * max|anchor|) over
    the finite part (the benchmark's protocol; eps is torch.finfo(dtype).eps).
    """
    import torch

    if not reference.dtype.is_floating_point:
        wrong = int((actual != reference).sum())
        total = actual.numel()
        return Comparison(wrong == 0, float(wrong > 0) * 2, f"{wrong} of {total} elements differ")
    got, want, exact = actual.double(), reference.double(), anchor.double()
    parity = _parity(got, want)
    if parity:
        return Comparison(False, float("inf"), parity)
    finite = want.isfinite() & exact.isfinite()
    if not bool(finite.all()):
        got, want, exact = got[finite], want[finite], exact[finite]
    if got.numel() == 0:
        return Comparison(True, 0.0, "no finite element to compare")
    error = float((got - exact).abs().max())
    scale = float(exact.abs().max())
    allowance = factor * max(float((want - exact).abs().max()), torch.finfo(reference.dtype).eps * scale)
    ratio = 0.0 if error == 0 else error / allowance if allowance else float("inf")
    text = f"max error {error:.3g}, allowance {allowance:.3g} ({ratio:.3g} times); largest exact value {scale:.3g}"
    return Comparison(error <= allowance, ratio, text)


def _parity(got: "Tensor", want: "Tensor") -> str:
    """What is wrong with the positions of NaN and the infinities, or an empty string."""
    for name, a, b in (
        ("NaN", got.isnan(), want.isnan()),
        ("+inf", got.isposinf(), want.isposinf()),
        ("-inf", got.isneginf(), want.isneginf()),
    ):
        extra, missing = int((a & ~b).sum()), int((b & ~a).sum())
        if extra or missing:
            return f"{extra} {name} where the reference has none, {missing} missing where it has them"
    return ""
