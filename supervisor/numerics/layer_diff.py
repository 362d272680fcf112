"""A model's forward pass in FP32 against BF16 or FP16, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from supervisor.errors import UsageError
from supervisor.numerics.figures import (
    SEVERE_ABOVE,
    WARNING_ABOVE,
    Level,
    level_of,
    percent,
    picture_bytes,
    worse,
    write_picture,
)
from supervisor.numerics.model_call import bare_model, copy_of
from supervisor.numerics.module_trace import LayerCall
from supervisor.numerics.number_format import DimensionSpread, format_of, spreads, widest
from supervisor.numerics.twin_passes import TwinPasses
from supervisor.records import plain
from supervisor.table import table


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputError:
    """One tensor of a layer's output.

    Attributes:
        tensor: where it is in the output: ``""`` (it is the output), ``[0]``, ``.logits``.
        shape: its shape.
        relative_error: L2 norm of the difference over that of the FP32 result (over 1 where that
            is zero); infinite where only the low precision is not finite.
        dimensions: spread and error over each dimension, of the FP32 result.
    """

    tensor: str
    shape: tuple[int, ...]
    relative_error: float
    dimensions: tuple[DimensionSpread, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerError:
    """One call of one layer.

    Attributes:
        name: dotted path; ``name#2`` for the second call of the same module; ``(model)``.
        type: class name of the module.
        relative_error: of its worst output, inherited and own error together.
        own_error: of the layer alone, in low precision from FP32 inputs; NaN for layers with
            children and where that is impossible.
        level: by `relative_error`: above 1 % warning, above 10 % severe.
        tensor: its worst output.
        dimension: the dimension of that output with the largest `max_min_ratio`; None without one.
        max_min_ratio: magnitudes of the slices along `dimension`, largest over smallest non-zero;
            above 1e4 a sum over it loses its small addends.
        loses_addends: whether that is so for some dimension of some output.
        outputs: every output that could be compared.
    """

    name: str
    type: str
    relative_error: float
    own_error: float
    level: Level
    tensor: str
    dimension: int | None
    max_min_ratio: float
    loses_addends: bool
    outputs: tuple[OutputError, ...]

    def to_dict(self) -> dict[str, Any]:
        dimensions = {
            output.tensor: [
                {"dim": d.dim, "max_ratio": d.max_ratio, "error": d.error, "index": d.index}
                for d in output.dimensions
            ]
            for output in self.outputs
        }
        return {
            **plain(self),
            "outputs": {output.tensor: output.relative_error for output in self.outputs},
            "dimensions": dimensions,
        }


COLOURS = {Level.OK: "#2c8a5c", Level.WARNING: "#c06a10", Level.SEVERE: "#c8393b"}
FLOOR = 1e-6
"""Errors below this stand at the lower edge of the logarithmic axis."""
CEILING = 10.0
"""Infinite errors stand at the upper one."""


def plot_diff(layers: Sequence[LayerError], dtype: str, path: Path) -> Path:
    """Draws the relative error of each layer in forward order, with the two lines.

    Args:
        layers: in forward order.
        dtype: of the low precision, for the title.
        path: its ending chooses png, svg or pdf.

    Raises:
        UsageError: the ending of `path` is unknown or the place cannot be written.
    """
    from matplotlib.figure import Figure

    height = max(3.0, 0.22 * len(layers) + 1.5)
    picture = Figure(figsize=(8, min(height, 60)), layout="constrained")
    axes = picture.add_subplot()
    places = range(len(layers))
    errors = [_on_axis(layer.relative_error) for layer in layers]
    axes.barh(places, errors, color=[COLOURS[layer.level] for layer in layers])
    own = [
        _on_axis(layer.own_error) if not math.isnan(layer.own_error) else math.nan
        for layer in layers
    ]
    axes.plot(own, places, "|", color="#1f2430", markersize=9, label="of the layer alone")
    axes.axvline(WARNING_ABOVE, color=COLOURS[Level.WARNING], linestyle="--", linewidth=1)
    axes.axvline(SEVERE_ABOVE, color=COLOURS[Level.SEVERE], linestyle="--", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlim(FLOOR, CEILING)
    axes.set_yticks(list(places), [layer.name for layer in layers], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("relative error (lines: 1 % and 10 %)")
    axes.set_title(f"FP32 against {dtype.upper()}, in forward order")
    axes.legend(loc="lower right", fontsize=7)
    return write_picture(path, picture_bytes(picture, path))


def _on_axis(error: float) -> float:
    return CEILING if not math.isfinite(error) else min(max(error, FLOOR), CEILING)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LayerDiff:
    """All layers in forward order: a container comes after what it contains.

    Attributes:
        dtype: ``bf16`` or ``fp16``.
        layers: one entry a call; calls without a floating output are left out.
        worst: name of the layer with the largest error, the first of equals.
        first_warning: name of the first layer above 1 %; None if there is none.
        unmatched: calls that only one of the two passes made (the model branches on values).
        nan_from: name of the first layer with NaN already in FP32; None if there is none. Layers
            with NaN in both passes are not compared.
    """

    dtype: str
    layers: tuple[LayerError, ...]
    worst: str
    first_warning: str | None
    unmatched: tuple[str, ...]
    nan_from: str | None = None

    @property
    def level(self) -> Level:
        """The worst level of any layer."""
        return worse(Level.OK, *(layer.level for layer in self.layers))

    def __getitem__(self, name: str) -> LayerError:
        """Returns the entry of that name.

        Raises:
            KeyError: no such call was compared.
        """
        return {layer.name: layer for layer in self.layers}[name]

    def to_dict(self) -> dict[str, Any]:
        """Returns the document of ``supervisor diff --json``."""
        return {**plain(self), "layers": [layer.to_dict() for layer in self.layers]}

    def plot(self, path: Path | str) -> Path:
        """Draws the error of each layer; the ending of `path` chooses png, svg or pdf.

        Raises:
            UsageError: the ending is unknown or the place cannot be written.
        """
        return plot_diff(self.layers, self.dtype, Path(path))

    def __repr__(self) -> str:
        rows = [
            (
                layer.name,
                layer.type + layer.tensor,
                percent(layer.relative_error),
                percent(layer.own_error),
                "-" if layer.dimension is None else layer.dimension,
                f"{layer.max_min_ratio:.2g}" + (" !" if layer.loses_addends else ""),
                layer.level.value,
            )
            for layer in self.layers
        ]
        headings = ("layer", "type", "error", "own", "dim", "max/min", "level")
        lines = [f"FP32 against {self.dtype.upper()}, in forward order", table(headings, rows)]
        return "\n".join([*lines, *self._sentences()])

    def _sentences(self) -> list[str]:
        sentences = []
        if self.first_warning:
            sentences.append(f"First layer above 1 %: {self.first_warning}; worst: {self.worst}.")
        else:
            sentences.append(f"No layer above 1 %; worst: {self.worst}.")
        if any(layer.loses_addends for layer in self.layers):
            sentences.append(
                "! a sum over this dimension loses its small addends: do that reduction in FP32."
            )
        if self.nan_from is not None:
            sentences.append(
                f"FP32 itself has NaN from {self.nan_from} on, where nothing can be compared: "
                "supervisor.find_nonfinite says where it comes from."
            )
        if self.unmatched:
            sentences.append(f"Not in both passes: {', '.join(self.unmatched)}.")
        return sentences


def layer_diff(
    model: nn.Module,
    sample: Any,
    *,
    dtype: str | torch.dtype = "bf16",
    autocast: bool = False,
) -> LayerDiff:
    """Compares the forward pass in FP32 with the low precision, layer by layer.

    Works on copies: the model, its buffers, its hooks and the random state are as before. Both
    passes run in the mode the model is in (train or eval) with the same random numbers.

    Args:
        model: on any device; the sample is brought there.
        sample: a tensor; a tuple or list of positional arguments; a dict of keyword arguments.
        dtype: ``"bf16"``, ``"fp16"`` or the torch type.
        autocast: compare with `torch.autocast` instead of a model converted as a whole.

    Raises:
        UsageError: not a module, the forward pass raises, or the device lacks an operation.
    """
    low = format_of(dtype, ("bf16", "fp16"))
    original = bare_model(model)
    reference, lowered = copy_of(original), copy_of(original)
    passes = TwinPasses(reference, lowered, low, autocast=autocast)
    passes.run(sample)
    return _compare(low.name, passes)


def _compare(name: str, passes: TwinPasses) -> LayerDiff:
    low_calls = {call.name: call for call in passes.low_calls}
    layers, unmatched = [], []
    for call in passes.reference_calls:
        other = low_calls.pop(call.name, None)
        if other is None:
            unmatched.append(call.name)
        elif layer := _layer(call, other, passes.own_outputs.get(call.name)):
            layers.append(layer)
    if not layers:
        raise UsageError("model: no layer returned a floating tensor: nothing to compare")
    return LayerDiff(
        dtype=name,
        layers=tuple(layers),
        worst=max(layers, key=lambda layer: layer.relative_error).name,
        first_warning=next((x.name for x in layers if x.level is not Level.OK), None),
        unmatched=(*unmatched, *low_calls),
        nan_from=next((call.name for call in passes.reference_calls if _has_nan(call)), None),
    )


def _has_nan(call: LayerCall) -> bool:
    return any(bool(tensor.isnan().any()) for tensor in call.outputs.values())


def _layer(
    reference: LayerCall, low: LayerCall, own: dict[str, torch.Tensor] | None
) -> LayerError | None:
    outputs = tuple(
        _output(path, tensor, low.outputs[path])
        for path, tensor in reference.outputs.items()
        if path in low.outputs and low.outputs[path].shape == tensor.shape
    )
    if not outputs:
        return None
    own_errors = [
        relative_error(reference.outputs[path], tensor)
        for path, tensor in (own or {}).items()
        if path in reference.outputs and reference.outputs[path].shape == tensor.shape
    ]
    worst = max(outputs, key=lambda output: output.relative_error)
    wide = widest(worst.dimensions)
    return LayerError(
        name=reference.name,
        type=reference.type,
        relative_error=worst.relative_error,
        own_error=max(own_errors, default=float("nan")),
        level=level_of(worst.relative_error),
        tensor=worst.tensor,
        dimension=wide.dim if wide else None,
        max_min_ratio=wide.max_ratio if wide else 1.0,
        loses_addends=any(d.loses_addends for output in outputs for d in output.dimensions),
        outputs=outputs,
    )


def _output(path: str, reference: torch.Tensor, low: torch.Tensor) -> OutputError:
    expected = as_real(reference)
    return OutputError(
        tensor=path,
        shape=tuple(reference.shape),
        relative_error=relative_error(reference, low),
        dimensions=spreads(expected, as_real(low) - expected),
    )


def relative_error(reference: torch.Tensor, low: torch.Tensor) -> float:
    """Returns the L2 norm of the difference over that of `reference` (over 1 where that is zero).

    Entries that are the same infinity, or NaN, in both are ignored; one in only one of them makes
    the error infinite.
    """
    expected, got = as_real(reference).double(), as_real(low).double()
    sound = torch.isfinite(expected) & torch.isfinite(got)
    same = (expected == got) | (expected.isnan() & got.isnan())
    if not bool((sound | same).all()):
        return float("inf")
    zero = torch.zeros_like(expected)
    norm = float(torch.linalg.vector_norm(torch.where(sound, expected, zero)))
    error = float(torch.linalg.vector_norm(torch.where(sound, got - expected, zero)))
    return error / norm if norm > 0 else error


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor in FP32, or its own type if finer; complex numbers as pairs."""
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return real if real.dtype == torch.float64 else real.float()
