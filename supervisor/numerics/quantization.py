"""What a tensor loses in a smaller number format, and what to do in FP32."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from supervisor.errors import UsageError
from supervisor.numerics.figures import (
    WARNING_ABOVE,
    Level,
    figure,
    level_of,
    percent,
    picture_bytes,
    worse,
    write_picture,
)
from supervisor.numerics.model_call import is_float
from supervisor.numerics.number_format import DimensionSpread, NumberFormat, format_of, spreads
from supervisor.records import Plain
from supervisor.table import table


@dataclass(frozen=True, slots=True, kw_only=True)
class DimensionAnalysis(DimensionSpread):
    """One dimension of a tensor: the spread of its slices, with their rounding errors.

    Attributes:
        reduction_error: relative error of a sum over this dimension whose running total is kept
            in the format, against FP64.
    """

    reduction_error: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TensorAnalysis(Plain):
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
    dimensions: tuple[DimensionAnalysis, ...]
    level: Level = Level.OK
    advice: tuple[str, ...] = ()

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


SCALE_BELOW_TOP = 2.0
"""Powers of two left free below the largest value when a scale is suggested."""


def advice_for(analysis: TensorAnalysis, target: NumberFormat) -> tuple[str, ...]:
    """Returns advice, most important first; none if nothing is lost."""
    advice = []
    if analysis.nan_count or analysis.inf_count:
        advice.append(
            f"{analysis.nan_count} NaN and {analysis.inf_count} infinite elements were there "
            "before any conversion: find where they come from first (find_nonfinite)"
        )
    if analysis.saturated_share:
        advice.append(_saturation(analysis, target))
    if analysis.underflow_share > WARNING_ABOVE:
        advice.append(_underflow(analysis, target))
    return (*advice, *_reductions(analysis, target))


def _saturation(analysis: TensorAnalysis, target: NumberFormat) -> str:
    effect = "become infinite" if target.has_infinity else "become NaN or are cut"
    remedy = "use BF16 or FP32 for it" if target.name == "fp16" else "use a larger format for it"
    scale = _scale(analysis, target)
    if scale < 1:
        remedy += f", or store it times {_power(scale)} and divide after the product"
    return (
        f"{percent(analysis.saturated_share)} of the elements exceed {figure(target.largest)} "
        f"and {effect}: {remedy}"
    )


def _underflow(analysis: TensorAnalysis, target: NumberFormat) -> str:
    scale = _scale(analysis, target)
    if scale <= 1:
        remedy = "keep it in FP32: its range is wider than the format's"
    elif analysis.smallest * scale >= target.underflow_below:
        remedy = f"multiply by {_power(scale)} before the conversion (loss scaling), or keep FP32"
    else:
        remedy = f"a scale of {_power(scale)} rescues some; keep it in FP32 to lose nothing"
    return (
        f"{percent(analysis.underflow_share)} of the elements are below "
        f"{figure(target.underflow_below)} and are lost: {remedy}"
    )


def _reductions(analysis: TensorAnalysis, target: NumberFormat) -> list[str]:
    wide = sorted((d for d in analysis.dimensions if d.loses_addends), key=lambda d: -d.max_ratio)
    advice = [
        f"do sums and means over dimension {d.dim} in FP32: its slices differ by a factor of "
        f"{d.max_ratio:.1e}, the small addends are lost in {target.name}"
        for d in wide
    ]
    if analysis.saturated_share:
        return advice  # the sums are off because the elements are
    long = [d for d in analysis.dimensions if d not in wide and _sums_badly(d)]
    advice += [
        f"do sums and means over dimension {d.dim} (size {d.size}) in FP32: with a running total "
        f"in {target.name} they are off by {percent(d.reduction_error)}"
        for d in sorted(long, key=lambda d: -d.reduction_error)
    ]
    return advice


def _sums_badly(dimension: DimensionAnalysis) -> bool:
    """Whether sums are worse than the warning line, beyond the rounding of their elements."""
    return dimension.reduction_error > max(WARNING_ABOVE, 2 * dimension.error)


def _scale(analysis: TensorAnalysis, target: NumberFormat) -> float:
    """The power of two that brings the largest element just below the top of the format."""
    if not analysis.largest:
        return 1.0
    exponent = math.floor(math.log2(target.largest) - math.log2(analysis.largest))
    return float(2.0 ** max(min(exponent - SCALE_BELOW_TOP, 126), -126))


def _power(scale: float) -> str:
    return f"2^{round(math.log2(scale))}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class QuantizationReport(Plain):
    """Several tensors in one format; `skipped` are those without floating-point numbers."""

    tensors: tuple[TensorAnalysis, ...]
    skipped: tuple[str, ...]

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
    dimensions = tuple(
        DimensionAnalysis(
            **asdict(spread), reduction_error=reduction_error(sound, spread.dim, target)
        )
        for spread in spreads(sound, rounding)
    )
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
        dimensions=dimensions,
    )
    told = _mask(values, analysis, target) or _whole_numbers(sound, analysis, target)
    if told is None:
        return _judged(analysis, target)
    return replace(analysis, level=told[0], advice=told[1:])


def _mask(
    values: torch.Tensor, analysis: TensorAnalysis, target: NumberFormat
) -> tuple[Level, str] | None:
    """What is said of a mask: -inf, or one value as low, where nothing may be looked at."""
    below = int(torch.isneginf(values).sum())
    if analysis.nan_count or analysis.inf_count != below or analysis.smallest != analysis.largest:
        return None
    if below and target.has_infinity:
        return Level.OK, "a mask: its -inf is held as it is, nothing is lost"
    if below:
        return Level.SEVERE, f"a mask: its -inf is NaN in {target.name}: keep it in BF16 or FP16"
    if analysis.saturated_share and float(values.max()) <= 0.0:
        return Level.WARNING, (
            f"a mask: its lowest value is beyond {target.name}, and a row of it alone gives NaN: "
            "take torch.finfo of the type in use for it"
        )
    return None


def _whole_numbers(
    sound: torch.Tensor, analysis: TensorAnalysis, target: NumberFormat
) -> tuple[Level, str] | None:
    """What is said of positions, indices and counts; None where there is nothing to say."""
    is_whole = analysis.nan_count + analysis.inf_count == 0 and bool((sound == sound.trunc()).all())
    exact = 2.0 / torch.finfo(target.dtype).eps
    if not is_whole or analysis.largest <= exact or analysis.saturated_share:
        return None
    if not analysis.relative_error:
        return None
    return Level.WARNING, (
        f"whole numbers up to {figure(analysis.largest)}: above {exact:.0f} {target.name} rounds "
        "them: keep positions, indices and counts as integers or in FP32"
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


MOST_ADDENDS = 4096
MOST_SUMS = 256
"""More sums, and longer ones, are sampled evenly: every addend is rounded one by one."""


def reduction_error(values: torch.Tensor, dim: int, target: NumberFormat) -> float:
    """Returns the relative error (L2 over all sums along `dim`) against FP64.

    Addends and running total are rounded to `target` after each addition, as in sums over devices
    or micro-batches in that format. Kernels with an FP32 total do better.

    Args:
        values: finite numbers.
    """
    addends = values.movedim(dim, 0).reshape(values.shape[dim], -1)
    addends = _sampled(_sampled(addends, 0, MOST_ADDENDS), 1, MOST_SUMS)
    total = torch.zeros_like(addends[0])
    for row in target.round(addends):
        total = target.round(total + row)
    exact = addends.double().sum(dim=0)
    norm = float(torch.linalg.vector_norm(exact))
    error = float(torch.linalg.vector_norm(total.double() - exact))
    return error / norm if norm > 0 else error


def _sampled(matrix: torch.Tensor, dim: int, most: int) -> torch.Tensor:
    size = matrix.shape[dim]
    if size <= most:
        return matrix
    picks = torch.linspace(0, size - 1, most, device=matrix.device, dtype=torch.float64).long()
    return matrix.index_select(dim, picks)


MOST_TENSORS = 8
"""The worst ones drawn; more lines could not be distinguished."""
BINS = 60


def plot_magnitudes(
    report: QuantizationReport,
    tensors: Mapping[str, torch.Tensor],
    target: NumberFormat,
    path: Path,
) -> Path:
    """Draws how the magnitudes of the worst tensors are distributed, with the format's limits.

    Raises:
        UsageError: the ending of `path` is unknown or the place cannot be written.
    """
    from matplotlib.figure import Figure

    picture = Figure(figsize=(8, 4.5), layout="constrained")
    axes = picture.add_subplot()
    worst = sorted(report.tensors, key=lambda t: -(t.underflow_share + t.saturated_share))
    for analysis in worst[:MOST_TENSORS]:
        exponents = _exponents(tensors[analysis.name])
        if exponents.numel():
            axes.hist(exponents.numpy(), bins=BINS, histtype="step", label=analysis.name)
    for limit in (target.underflow_below, target.largest):
        exponent = float(torch.tensor(limit, dtype=torch.float64).log10())
        axes.axvline(exponent, color="#c8393b", linestyle="--", linewidth=1)
    axes.set_xlabel(f"log10 |x| (lines: the limits of {target.name})")
    axes.set_ylabel("elements")
    if worst:
        axes.legend(fontsize=7)
    return write_picture(path, picture_bytes(picture, path))


def _exponents(tensor: torch.Tensor) -> torch.Tensor:
    values = tensor.detach().cpu().double().flatten().abs()
    return values[torch.isfinite(values) & (values > 0)].log10()
