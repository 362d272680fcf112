"""How far one layer is off in low precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from supervisor.numerics.figures.dimension_spread import DimensionSpread
from supervisor.numerics.figures.level import Level


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
            "name": self.name,
            "type": self.type,
            "relative_error": self.relative_error,
            "level": self.level.value,
            "dimension": self.dimension,
            "max_min_ratio": self.max_min_ratio,
            "tensor": self.tensor,
            "own_error": self.own_error,
            "loses_addends": self.loses_addends,
            "outputs": {output.tensor: output.relative_error for output in self.outputs},
            "dimensions": dimensions,
        }
