"""How the precision in use affects one forward pass, layer by layer, and where it overflows."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from supervisor.numerics.layer_diff import LayerDiff, layer_diff
from supervisor.numerics.model_call import bare_model, call_model, cast_floats, copy_of
from supervisor.numerics.module_trace import ModuleTrace
from supervisor.numerics.number_format import NumberFormat, format_of
from supervisor.numerics.op_watch import OverflowWatch
from supervisor.numerics.quantization import TensorAnalysis, analyze_tensor

LOW = (torch.float16, torch.bfloat16)
MAX_LAYERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionView:
    """Comparison of FP32 with the precision in use, for one state and one batch.

    Attributes:
        dtype: ``bf16`` or ``fp16``.
        autocast: whether by `torch.autocast`; otherwise the model itself is in that format.
        layers: the difference of each layer.
        overflow: the first result that FP32 can hold and the format cannot; None without one.
        module, operation: where that result is computed.
    """

    dtype: str
    autocast: bool
    layers: LayerDiff
    overflow: TensorAnalysis | None
    module: str
    operation: str

    def to_dict(self) -> dict[str, Any]:
        """Returns the object ``precision`` of ``explain --json``."""
        fields = ("name", "type", "relative_error", "own_error", "max_min_ratio")
        layers = [
            {**{field: getattr(layer, field) for field in fields}, "level": layer.level.value}
            for layer in self.layers.layers[:MAX_LAYERS]
        ]
        overflow = None
        if self.overflow is not None:
            analysis = self.overflow.to_dict()
            overflow = {"module": self.module, "operation": self.operation, **analysis}
        return {
            "dtype": self.dtype,
            "autocast": self.autocast,
            "first_warning": self.layers.first_warning,
            "worst": self.layers.worst,
            "layers": layers,
            "overflow": overflow,
        }


def view_precision(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> PrecisionView | None:
    """Compares a forward pass in FP32 with the precision in use now.

    Needs memory for three copies of the model.

    Args:
        model: as the script calls it, within its autocast.
        args, kwargs: the arguments.

    Returns:
        None if everything is computed in FP32.

    Raises:
        UsageError: the model cannot be copied or its pass raises.
    """
    model = bare_model(model)
    used = low_precision_of(model)
    if used is None:
        return None
    device, dtype, autocast = used
    sample = _sample(model, args, dict(kwargs))
    low = format_of(dtype)
    with torch.autocast(device, enabled=False):
        diff = layer_diff(model, sample, dtype=dtype, autocast=autocast)
        watch = _overflow(model, sample, low)
    overflow = None
    if watch.tensor is not None:
        overflow = analyze_tensor(watch.tensor, dtype, name=f"{watch.module}: {watch.operation}")
    return PrecisionView(
        dtype=low.name,
        autocast=autocast,
        layers=diff,
        overflow=overflow,
        module=watch.module,
        operation=watch.operation,
    )


def low_precision_of(model: nn.Module) -> tuple[str, torch.dtype, bool] | None:
    """Returns device, format and whether autocast is the reason; None if all is FP32 here."""
    device = next((p.device.type for p in model.parameters()), "cpu")
    autocast = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if autocast else _dtype_of(model)
    return (device, dtype, autocast) if dtype in LOW else None


def _overflow(model: nn.Module, sample: Any, low: NumberFormat) -> OverflowWatch:
    twin = copy_of(model).float()
    trace = ModuleTrace(twin)
    watch = OverflowWatch(trace, low.largest)
    with torch.random.fork_rng(), torch.no_grad(), trace, watch:
        call_model(twin, cast_floats(sample, torch.float32))
    return watch


def _dtype_of(model: nn.Module) -> torch.dtype | None:
    """The type of most floating parameters."""
    sizes: dict[torch.dtype, int] = {}
    for parameter in model.parameters():
        sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
    return max(sizes, key=lambda dtype: sizes[dtype], default=None)


def _sample(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not kwargs:
        return args
    if not args:
        return kwargs
    return dict(inspect.signature(model.forward).bind(*args, **kwargs).arguments)
