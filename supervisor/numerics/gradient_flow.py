"""How large the gradients are in each layer, from the input to the output."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from supervisor.errors import UsageError
from supervisor.numerics.figures import figure, percent, picture_bytes, write_picture
from supervisor.numerics.model_call import bare_model
from supervisor.records import Plain, plain
from supervisor.table import table
from supervisor.training_state.tensors import local


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGradient(Plain):
    """The gradients of one layer's own parameters, taken together.

    Attributes:
        name: dotted path of the module; ``(model)`` for parameters of the model itself.
        type: its class name.
        norm: L2 norm.
        mean, max, min: of the absolute values.
        zero_share: share of the elements that are exactly zero.
        nonfinite: how many elements are NaN or infinite; they count in `norm` and its like too.
        size: number of elements.
    """

    name: str
    type: str
    norm: float
    mean: float
    max: float
    min: float
    zero_share: float
    nonfinite: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GradientFlow:
    """All layers that have gradients, in the order of the model.

    Attributes:
        layers: one entry a layer.
        without_gradient: parameters that could have a gradient and have none.
    """

    layers: tuple[LayerGradient, ...]
    without_gradient: tuple[str, ...]

    @property
    def total_norm(self) -> float:
        """Global L2 norm of all gradients."""
        return math.sqrt(sum(layer.norm**2 for layer in self.layers))

    def to_dict(self) -> dict[str, Any]:
        return {**plain(self), "total_norm": self.total_norm}

    def __repr__(self) -> str:
        rows = [
            (layer.name, layer.type, *map(figure, (layer.norm, layer.mean, layer.max, layer.min)),
             percent(layer.zero_share))
            for layer in self.layers
        ]  # fmt: skip
        lines = [table(("layer", "type", "norm", "mean", "max", "min", "zeros"), rows)]
        sick = [layer.name for layer in self.layers if layer.nonfinite]
        if sick:
            lines.append(f"Not finite in: {', '.join(sick)}.")
        if self.without_gradient:
            lines.append(f"Without a gradient: {', '.join(self.without_gradient)}.")
        return "\n".join(lines)

    def plot(self, path: Path | str) -> Path:
        """Draws norm, mean and maximum of each layer on a logarithmic axis.

        Args:
            path: where; the ending chooses the format (png, svg, pdf). Made private to the user.

        Raises:
            UsageError: the ending is unknown or the place cannot be written.
        """
        from matplotlib.figure import Figure

        picture = Figure(figsize=(max(6.0, 0.35 * len(self.layers) + 2), 4.5), layout="constrained")
        axes = picture.add_subplot()
        places = range(len(self.layers))
        for label, colour, marker in (
            ("norm", "#2f6fdb", "o"),
            ("max", "#c06a10", "^"),
            ("mean", "#2c8a5b", "s"),
        ):
            values = [_drawable(getattr(layer, label)) for layer in self.layers]
            axes.plot(places, values, label=label, color=colour, marker=marker, markersize=4)
        for place, layer in enumerate(self.layers):
            if layer.nonfinite:
                axes.axvline(place, color="#c8393b", linewidth=6, alpha=0.3)
        axes.set_yscale("log")
        axes.set_ylabel("gradient, absolute")
        axes.set_xticks(list(places), [layer.name for layer in self.layers], rotation=90)
        axes.set_title("Gradient flow, input to output (red: not finite)")
        axes.legend()
        axes.grid(axis="y", alpha=0.3)
        return write_picture(Path(path), picture_bytes(picture, Path(path)))


def gradient_flow(model: nn.Module) -> GradientFlow:
    """Measures the ``.grad`` of all parameters as it is now: call it between backward and step.

    Raises:
        UsageError: not a module, or no parameter has a gradient.
    """
    layers, missing = [], []
    seen: set[int] = set()
    for path, module in bare_model(model).named_modules():
        gradients = []
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            if parameter.grad is not None:
                gradients.append(parameter.grad)
            elif parameter.requires_grad:
                missing.append(f"{path}.{name}" if path else name)
        if gradients:
            layers.append(_layer(path or "(model)", type(module).__name__, gradients))
    if not layers:
        raise UsageError("model: no parameter has a gradient: call this between backward and step")
    return GradientFlow(layers=tuple(layers), without_gradient=tuple(missing))


def _layer(name: str, kind: str, gradients: list[torch.Tensor]) -> LayerGradient:
    parts = [_elements(gradient) for gradient in gradients]
    values = torch.cat(parts).abs()
    return LayerGradient(
        name=name,
        type=kind,
        norm=float(torch.linalg.vector_norm(values, dtype=torch.float64)),
        mean=float(values.mean(dtype=torch.float64)),
        max=float(values.max()) if values.numel() else 0.0,
        min=float(values.min()) if values.numel() else 0.0,
        zero_share=float((values == 0).double().mean()),
        nonfinite=int((~torch.isfinite(values)).sum()),
        size=values.numel(),
    )


def _elements(gradient: torch.Tensor) -> torch.Tensor:
    own = local(gradient)  # what lies on this rank: the others may not be looking
    dense = own.to_dense() if own.is_sparse else own
    return dense.flatten().abs().float() if dense.is_complex() else dense.flatten().float()


def _drawable(value: float) -> float:
    """Zero and infinity become gaps, since a logarithmic axis cannot show them."""
    return value if math.isfinite(value) and value > 0 else math.nan
