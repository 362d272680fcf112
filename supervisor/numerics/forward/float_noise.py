"""Gives a low-precision pass the same random numbers as the FP32 pass."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from supervisor.numerics.forward.tensor_tree import map_tensors

DRAWS = frozenset(
    {"bernoulli", "cauchy", "dropout", "exponential", "geometric", "log_normal", "multinomial",
     "native_dropout", "normal", "normal_functional", "poisson", "rand", "rand_like", "randn",
     "randn_like", "_standard_gamma", "uniform"}
)  # fmt: skip
LOW = (torch.bfloat16, torch.float16)


class FloatNoise(TorchDispatchMode):
    """While active, low-precision draws are made in FP32 and rounded.

    Otherwise dropout masks and sampled latents of the two passes would be unrelated.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        if name.rstrip("_") not in DRAWS:
            return func(*args, **kwargs)
        low = _low_dtype(args, kwargs)
        if low is None:
            return func(*args, **kwargs)
        drawn = func(*map_tensors(args, _to_float), **_in_float(kwargs))
        if name.endswith("_"):
            return args[0].copy_(drawn)
        return map_tensors(drawn, lambda tensor: _to_low(tensor, low))


def _low_dtype(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype | None:
    asked = kwargs.get("dtype")
    if asked is not None:
        return asked if asked in LOW else None
    for value in args:
        if isinstance(value, torch.Tensor) and value.dtype in LOW:
            return value.dtype
    return None


def _in_float(kwargs: dict[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = map_tensors(kwargs, _to_float)
    if changed.get("dtype") in LOW:
        changed["dtype"] = torch.float32
    return changed


def _to_float(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in LOW else tensor


def _to_low(tensor: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    return tensor.to(low) if tensor.dtype == torch.float32 else tensor
