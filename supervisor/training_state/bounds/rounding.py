"""How far a floating-point type may be from the algebra."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Rounding:
    """Of one type.

    Attributes:
        unit: the largest relative error of one operation (half a unit in the last place).
        tiny: the largest absolute error where numbers underflow, also on hardware that flushes
            subnormal numbers to zero.
        smallest: what a constant must be at least so as not to become zero itself.
    """

    unit: float
    tiny: float
    smallest: float

    @classmethod
    def of(cls, dtype: torch.dtype) -> Rounding | None:
        """Returns that of `dtype`; None for types without bounds (complex, 8 bit, integers)."""
        return _KNOWN.get(dtype)


def _rounding(dtype: torch.dtype) -> Rounding:
    info = torch.finfo(dtype)
    return Rounding(unit=info.eps / 2, tiny=info.tiny, smallest=info.tiny)


_KNOWN = {
    dtype: _rounding(dtype)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
}
