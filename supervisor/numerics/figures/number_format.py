"""The number formats a model can run in, with the magnitudes at which each loses values."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

import torch

from supervisor.errors import UsageError


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
    near = difflib.get_close_matches(str(dtype), allowed, n=1)
    hint = f"did you mean {near[0]}?" if near else f"give one of {', '.join(allowed)}"
    raise UsageError(f"dtype: {dtype!r} is not a format to compare with: {hint}")
