"""What to do about what a tensor loses in a small format."""

from __future__ import annotations

import math

from supervisor.numerics.figures.level import WARNING_ABOVE
from supervisor.numerics.figures.number_format import NumberFormat
from supervisor.numerics.figures.readable import figure, percent
from supervisor.numerics.quantize.tensor_analysis import DimensionAnalysis, TensorAnalysis

SCALE_BELOW_TOP = 2.0
"""Powers of two left free below the largest value when a scale is suggested."""


def advice_for(analysis: TensorAnalysis, target: NumberFormat) -> tuple[str, ...]:
    """Returns advice, most important first; none if nothing is lost."""
    advice = [
        *_not_finite(analysis),
        *_saturation(analysis, target),
        *_underflow(analysis, target),
        *_reductions(analysis, target),
    ]
    return tuple(advice)


def _not_finite(analysis: TensorAnalysis) -> list[str]:
    if not analysis.nan_count and not analysis.inf_count:
        return []
    return [
        f"{analysis.nan_count} NaN and {analysis.inf_count} infinite elements were there before "
        "any conversion: find where they come from first (find_nonfinite)"
    ]


def _saturation(analysis: TensorAnalysis, target: NumberFormat) -> list[str]:
    if not analysis.saturated_share:
        return []
    effect = "become infinite" if target.has_infinity else "become NaN or are cut"
    remedy = "use BF16 or FP32 for it" if target.name == "fp16" else "use a larger format for it"
    scale = _scale(analysis, target)
    if scale < 1:
        remedy += f", or store it times {_power(scale)} and divide after the product"
    return [
        f"{percent(analysis.saturated_share)} of the elements exceed {figure(target.largest)} "
        f"and {effect}: {remedy}"
    ]


def _underflow(analysis: TensorAnalysis, target: NumberFormat) -> list[str]:
    if analysis.underflow_share <= WARNING_ABOVE:
        return []
    scale = _scale(analysis, target)
    rescued = analysis.smallest * scale >= target.underflow_below
    if scale <= 1:
        remedy = "keep it in FP32: its range is wider than the format's"
    elif rescued:
        remedy = f"multiply by {_power(scale)} before the conversion (loss scaling), or keep FP32"
    else:
        remedy = f"a scale of {_power(scale)} rescues some; keep it in FP32 to lose nothing"
    return [
        f"{percent(analysis.underflow_share)} of the elements are below "
        f"{figure(target.underflow_below)} and are lost: {remedy}"
    ]


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
