"""The number formats a model can run in, with the magnitudes at which each loses values."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from supervisor.config_check import did_you_mean
from supervisor.errors import UsageError
from supervisor.numerics.figures import SPREAD_LINE, WARNING_ABOVE


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberFormat:
    """A floating-point format smaller than FP32.

    Attributes:
        name: as on the command line: ``bf16``, ``fp16``, ``fp8_e4m3``, ``fp8_e5m2``.
        dtype: the torch type.
        largest: the largest finite value.
        smallest: the smallest value that is not zero (subnormal).
        underflow_below: magnitudes below this count as lost. FP16 and FP8: `smallest`. BF16: the
            smallest *normal* value, because matrix units take BF16 subnormals as zero.
        has_infinity: whether a value past `largest` becomes infinite (else NaN).
    """

    name: str
    dtype: torch.dtype
    largest: float
    smallest: float
    underflow_below: float
    has_infinity: bool

    def round(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns `tensor` (finite) rounded to this format and clamped to its ends."""
        clamped = tensor.clamp(-self.largest, self.largest)
        return clamped.to(self.dtype).to(tensor.dtype)


def _number_format(name: str, dtype: torch.dtype) -> NumberFormat:
    limits = torch.finfo(dtype)
    smallest = limits.smallest_normal * limits.eps
    return NumberFormat(
        name=name,
        dtype=dtype,
        largest=limits.max,
        smallest=smallest,
        underflow_below=limits.smallest_normal if name == "bf16" else smallest,
        has_infinity=name != "fp8_e4m3",
    )


FORMATS = {
    name: _number_format(name, dtype)
    for name, dtype in (
        ("bf16", torch.bfloat16),
        ("fp16", torch.float16),
        ("fp8_e4m3", torch.float8_e4m3fn),
        ("fp8_e5m2", torch.float8_e5m2),
    )
}


def format_of(dtype: str | torch.dtype, allowed: tuple[str, ...] = tuple(FORMATS)) -> NumberFormat:
    """Returns the format of a name or a torch type.

    Raises:
        UsageError: it is none of `allowed`.
    """
    for name in allowed:
        if dtype in (name, FORMATS[name].dtype):
            return FORMATS[name]
    hint = did_you_mean(str(dtype), allowed) or f"; give one of {', '.join(allowed)}"
    raise UsageError(f"dtype: {dtype!r} is not a format to compare with{hint}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DimensionSpread:
    """One dimension, seen as the slices ``x[i]`` along it.

    Attributes:
        dim: number of the dimension, from 0.
        size: how many slices.
        max_ratio: largest magnitude of a slice over the smallest that is not zero; a slice's
            magnitude is its largest |x|. 1.0 when there is nothing to compare.
        small_share: share of the slices (zeros left out) below the largest / 1e4.
        error: largest relative error (L2) of a slice.
        index: the slice with that error.
        loses_addends: a sum over this dimension in the small format loses its small addends.
    """

    dim: int
    size: int
    max_ratio: float
    small_share: float
    error: float
    index: int
    loses_addends: bool


def spreads(reference: torch.Tensor, difference: torch.Tensor) -> tuple[DimensionSpread, ...]:
    """Returns the spread over each dimension; non-finite entries of either tensor are left out."""
    sound = torch.isfinite(reference) & torch.isfinite(difference)
    values = torch.where(sound, reference, torch.zeros_like(reference)).abs()
    errors = torch.where(sound, difference, torch.zeros_like(difference)).abs()
    if values.numel() == 0:
        return ()
    return tuple(_spread(values, errors, dim) for dim in range(values.dim()))


def widest(dimensions: tuple[DimensionSpread, ...]) -> DimensionSpread | None:
    """Returns the dimension with the largest ratio, the first of equals; None without any."""
    return max(dimensions, key=lambda spread: spread.max_ratio, default=None)


def _spread(values: torch.Tensor, errors: torch.Tensor, dim: int) -> DimensionSpread:
    size = values.shape[dim]
    slices = values.movedim(dim, 0).reshape(size, -1)
    magnitudes = slices.amax(dim=1)
    present = magnitudes[magnitudes > 0]
    ratio, small_share = 1.0, 0.0
    if present.numel():
        largest = float(present.max())
        ratio = largest / float(present.min())
        small_share = float((present < largest / SPREAD_LINE).double().mean())
    norms = torch.linalg.vector_norm(slices, dim=1, dtype=torch.float64)
    wrong = errors.movedim(dim, 0).reshape(size, -1)
    wrong_norms = torch.linalg.vector_norm(wrong, dim=1, dtype=torch.float64)
    relative = wrong_norms / torch.where(norms > 0, norms, torch.ones_like(norms))
    index = int(relative.argmax())
    # Single numbers of any bell curve reach 1e4 by chance; slices of many numbers do not.
    telling = slices.shape[1] > 1 or small_share > WARNING_ABOVE
    return DimensionSpread(
        dim=dim,
        size=size,
        max_ratio=ratio,
        small_share=small_share,
        error=float(relative[index]),
        index=index,
        loses_addends=ratio > SPREAD_LINE and telling,
    )
