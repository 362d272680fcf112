"""What a tensor loses in a smaller number format, and what to do in FP32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from supervisor.errors import UsageError
from supervisor.numerics.figures.dimension_spread import DimensionSpread, spreads
from supervisor.numerics.figures.level import Level, level_of, worse
from supervisor.numerics.figures.number_format import NumberFormat, format_of
from supervisor.numerics.figures.readable import figure, percent
from supervisor.numerics.figures.reduction import reduction_error
from supervisor.numerics.forward.tensor_tree import is_float
from supervisor.numerics.quantize.quantization_advice import advice_for
from supervisor.numerics.quantize.tensor_analysis import DimensionAnalysis, TensorAnalysis
from supervisor.table import table


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class QuantizationReport:
    """Several tensors in one format; `skipped` are those without floating-point numbers."""

    tensors: tuple[TensorAnalysis, ...]
    skipped: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Returns the document of ``supervisor quantize --json``."""
        return {
            "tensors": [tensor.to_dict() for tensor in self.tensors],
            "skipped": list(self.skipped),
        }

    def __repr__(self) -> str:
        if len(self.tensors) == 1:
            return repr(self.tensors[0])
        rows = [
            (t.name, "x".join(map(str, t.shape)), percent(t.underflow_share),
             percent(t.saturated_share), percent(t.relative_error),
             figure(max((d.max_ratio for d in t.dimensions), default=1.0)), t.level.value)
            for t in self.tensors
        ]  # fmt: skip
        headings = ("tensor", "shape", "underflow", "saturated", "error", "max/min", "level")
        lines = [table(headings, rows)]
        lines += [f"- {t.name}: {advice}" for t in self.tensors for advice in t.advice]
        return "\n".join(lines)


def analyze_tensor(
    tensor: torch.Tensor, dtype: str | torch.dtype = "bf16", *, name: str = "tensor"
) -> TensorAnalysis:
    """Says what `tensor` loses in `dtype`, without scaling.

    Args:
        tensor: floating numbers of any shape, on any device; is not changed.
        dtype: ``"fp16"``, ``"bf16"``, ``"fp8_e4m3"``, ``"fp8_e5m2"`` or the torch type.
        name: what the result calls it.

    Raises:
        UsageError: not a tensor of real floating numbers, or no such format.
    """
    target = format_of(dtype)
    if not isinstance(tensor, torch.Tensor) or not is_float(tensor) or tensor.is_complex():
        raise UsageError(f"{name}: {_unfit(tensor)}")
    if tensor.is_meta:
        raise UsageError(f"{name}: it is on the device meta and has no values: load them first")
    with torch.no_grad():
        return _analyze(tensor.detach(), target, name)


def analyze_tensors(
    tensors: Mapping[str, torch.Tensor], dtype: str | torch.dtype = "bf16"
) -> QuantizationReport:
    """Analyses every floating tensor of `tensors`, in their order.

    Raises:
        UsageError: none of them is floating, or no such format.
    """
    usable = {n: t for n, t in tensors.items() if is_float(t) and not t.is_complex()}
    if not usable:
        raise UsageError("tensors: none holds floating numbers: there is nothing to analyse")
    return QuantizationReport(
        tensors=tuple(analyze_tensor(t, dtype, name=n) for n, t in usable.items()),
        skipped=tuple(n for n in tensors if n not in usable),
    )


def _analyze(tensor: torch.Tensor, target: NumberFormat, name: str) -> TensorAnalysis:
    values = tensor if tensor.dtype == torch.float64 else tensor.float()
    finite = torch.isfinite(values)
    sound = torch.where(finite, values, torch.zeros_like(values))
    magnitudes = sound.abs()
    present = magnitudes[magnitudes > 0]
    rounding = target.round(sound) - sound
    dimensions = tuple(_dimension(spread, sound, target) for spread in spreads(sound, rounding))
    norm = float(torch.linalg.vector_norm(sound, dtype=torch.float64))
    error = float(torch.linalg.vector_norm(rounding, dtype=torch.float64))
    analysis = TensorAnalysis(
        name=name,
        shape=tuple(tensor.shape),
        dtype=target.name,
        underflow_share=_share(present < target.underflow_below),
        subnormal_share=_share(present < torch.finfo(target.dtype).smallest_normal),
        saturated_share=_share(present > target.largest),
        relative_error=error / norm if norm > 0 else 0.0,
        nan_count=int(values.isnan().sum()),
        inf_count=int(values.isinf().sum()),
        largest=float(present.max()) if present.numel() else 0.0,
        smallest=float(present.min()) if present.numel() else 0.0,
        level=Level.OK,
        dimensions=dimensions,
        advice=(),
    )
    return _judged(analysis, target)


def _dimension(
    spread: DimensionSpread, values: torch.Tensor, target: NumberFormat
) -> DimensionAnalysis:
    return DimensionAnalysis(
        dim=spread.dim,
        size=spread.size,
        max_ratio=spread.max_ratio,
        error=spread.error,
        index=spread.index,
        reduction_error=reduction_error(values, spread.dim, target),
        loses_addends=spread.loses_addends,
    )


def _judged(analysis: TensorAnalysis, target: NumberFormat) -> TensorAnalysis:
    level = worse(level_of(analysis.underflow_share), level_of(analysis.saturated_share))
    overflows = analysis.saturated_share > 0 and target.name in ("fp16", "bf16")
    if analysis.nan_count or analysis.inf_count or overflows:
        level = Level.SEVERE  # one such element is enough for everything computed from it
    if analysis.saturated_share > 0 or any(d.loses_addends for d in analysis.dimensions):
        level = worse(level, Level.WARNING)
    return replace(analysis, level=level, advice=advice_for(analysis, target))


def _share(hits: torch.Tensor) -> float:
    return float(hits.double().mean()) if hits.numel() else 0.0


def _unfit(value: Any) -> str:
    """What is wrong with a value that is no dense tensor of real numbers, and what to do."""
    if not isinstance(value, torch.Tensor):
        return f"{type(value).__name__} is no torch.Tensor: make one with torch.as_tensor"
    if value.is_nested or value.layout is not torch.strided:
        return "a sparse or nested tensor has no rows and columns to look at: give its values()"
    if value.is_complex():
        return f"{value.dtype} is complex: give torch.view_as_real of it"
    return f"{value.dtype} holds no floating numbers: there is nothing to lose"
