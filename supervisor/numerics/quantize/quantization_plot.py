"""The picture of how tensors fit a format: their magnitudes within its range."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from supervisor.numerics.figures.number_format import NumberFormat
from supervisor.numerics.figures.picture import picture_bytes, write_picture
from supervisor.numerics.quantize.quantization import QuantizationReport

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
