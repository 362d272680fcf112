"""What one tensor loses in one format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from supervisor.numerics.figures.level import Level
from supervisor.numerics.figures.readable import figure, percent
from supervisor.table import table


@dataclass(frozen=True, slots=True, kw_only=True)
class DimensionAnalysis:
    """One dimension of a tensor.

    Attributes:
        dim, size: which, and how many slices.
        max_ratio: magnitudes of the slices, largest over smallest non-zero; above 1e4 a sum over
            this dimension loses its small addends.
        error: largest relative rounding error (L2) of a slice; `index` is that slice.
        reduction_error: relative error of a sum over this dimension whose running total is kept
            in the format, against FP64.
        loses_addends: the spread is too wide for a sum in the format.
    """

    dim: int
    size: int
    max_ratio: float
    error: float
    index: int
    reduction_error: float
    loses_addends: bool


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TensorAnalysis:
    """One tensor in one format. Shares are of the finite elements that are not zero.

    Attributes:
        name, shape, dtype: which tensor, in which format.
        underflow_share: below what the format can hold (FP16 5.96e-8; BF16 1.18e-38, as matrix
            units take its subnormals as zero).
        subnormal_share: held with fewer digits.
        saturated_share: beyond the largest finite value.
        relative_error: L2 norm of the rounding error over that of the tensor.
        nan_count, inf_count: elements that are not finite in the tensor itself.
        largest, smallest: magnitudes of the finite elements that are not zero.
        level: of what is lost: warning above 1 %, severe above 10 %.
        dimensions: one entry a dimension.
        advice: what to do, most important first.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    underflow_share: float
    subnormal_share: float
    saturated_share: float
    relative_error: float
    nan_count: int
    inf_count: int
    largest: float
    smallest: float
    level: Level
    dimensions: tuple[DimensionAnalysis, ...]
    advice: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        plain = {field: getattr(self, field) for field in self.__slots__}
        plain["shape"] = list(self.shape)
        plain["level"] = self.level.value
        plain["dimensions"] = [
            {field: getattr(entry, field) for field in entry.__slots__} for entry in self.dimensions
        ]
        plain["advice"] = list(self.advice)
        return plain

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.shape)) or "scalar"
        lines = [
            f"{self.name} ({shape}) in {self.dtype.upper()}: {self.level.value}",
            f"underflow {percent(self.underflow_share)}, saturated {percent(self.saturated_share)}"
            f", error {percent(self.relative_error)}, |x| from {figure(self.smallest)} to "
            f"{figure(self.largest)}, NaN {self.nan_count}, infinite {self.inf_count}",
        ]
        if self.dimensions:
            rows = [
                (d.dim, d.size, figure(d.max_ratio) + (" !" if d.loses_addends else ""),
                 f"{percent(d.error)} at {d.index}", percent(d.reduction_error))
                for d in self.dimensions
            ]  # fmt: skip
            headings = ("dim", "size", "max/min", "worst slice", "error of a sum")
            lines.append(table(headings, rows))
        return "\n".join([*lines, *(f"- {line}" for line in self.advice)])
