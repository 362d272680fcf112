"""Finds the first result of an FP32 pass that a smaller format cannot hold."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from supervisor.numerics.forward.module_trace import ModuleTrace
from supervisor.numerics.forward.tensor_tree import is_float, tensors_in
from supervisor.numerics.nonfinite.op_watch import WRITES_ON_PURPOSE


class OverflowWatch(TorchDispatchMode):
    """While active, keeps the first finite result above `largest` from inputs below it.

    Intended values (attention masks) do not count.

    Args:
        trace: knows the module at work.
        largest: of the smaller format.

    Attributes:
        tensor: a copy of that result, None without one.
        module, operation: where it was computed.
    """

    def __init__(self, trace: ModuleTrace, largest: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tensor: torch.Tensor | None = None
        self.module = ""
        self.operation = ""
        self._trace = trace
        self._largest = largest

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.split("::")[-1].strip("_")
        watched = self.tensor is None and name not in WRITES_ON_PURPOSE
        came_in = watched and any(map(self._exceeds, _tensors((args, kwargs))))
        output = func(*args, **kwargs)
        if watched and not came_in:
            for tensor in _tensors(output):
                if self._exceeds(tensor):
                    self.tensor = tensor.detach().clone()
                    self.module, self.operation = self._trace.module, name
                    break
        return output

    def _exceeds(self, tensor: torch.Tensor) -> bool:
        finite = tensor.detach().abs().nan_to_num(nan=0.0, posinf=0.0)
        return bool(finite.numel()) and float(finite.max()) > self._largest


def _tensors(value: Any) -> list[torch.Tensor]:
    return [tensor for _, tensor in tensors_in(value) if is_float(tensor)]
