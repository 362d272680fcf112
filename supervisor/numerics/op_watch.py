"""Watches every tensor operation for the first NaN and infinities."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from supervisor.numerics.model_call import is_float, map_tensors, tensors_in
from supervisor.numerics.module_trace import ModuleTrace
from supervisor.numerics.nonfinite_cause import NonfiniteCause, OperationCall, cause_of

WRITES_ON_PURPOSE = frozenset(
    {"fill", "full", "full_like", "lift_fresh", "masked_fill", "masked_scatter", "new_full",
     "scalar_tensor", "tril", "triu", "where"}
)  # fmt: skip
"""Infinities from these are intended: attention masks are made so."""

UNWRITTEN = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
"""These return uninitialised memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Birth:
    """An operation that made NaN or infinities from finite inputs.

    Attributes:
        phase: ``forward``, ``loss``, ``backward`` or ``update``.
        module, module_type: where.
        operation: ``log``; in the backward pass the one whose derivative it is.
        kernel: the ATen operation itself, ``aten::log``.
        is_nan: NaN, not only infinities.
        on_purpose: intended infinities.
        source: the birth of infinities among its inputs, if any.
        cause: what happened, with key values; None if on purpose.
    """

    phase: str
    module: str
    module_type: str
    operation: str
    kernel: str
    is_nan: bool
    on_purpose: bool
    source: Birth | None = field(repr=False)
    cause: NonfiniteCause | None


class OpWatch(TorchDispatchMode):
    """While active, remembers from which birth the non-finite values of each tensor come.

    Infinities are followed: a mask's that end in a finite softmax are harmless, and a NaN caused by
    an overflow is reported as the overflow.
    """

    def __init__(self, trace: ModuleTrace) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase = "forward"
        self.births: list[Birth] = []
        self._trace = trace
        self._origins: dict[int, Birth] = {}
        self._makers: dict[int, str] = {}

    def origin(self, tensor: torch.Tensor) -> Birth | None:
        """Returns the birth from which the non-finite values of `tensor` come."""
        return self._origins.get(_memory(tensor))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        # An operation in place would leave its result where its input was.
        before = args
        if func._schema.is_mutable:
            before = map_tensors(
                args, lambda tensor: tensor.clone() if is_float(tensor) else tensor
            )
        output = func(*args, **kwargs)
        self._look(func, args, before, kwargs, output)
        return output

    def _look(
        self,
        func: Any,
        args: tuple[Any, ...],
        before: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        output: Any,
    ) -> None:
        kernel = func._schema.name
        name = kernel.split("::")[-1].strip("_")
        made = args if output is None else output  # in place on a list of tensors: no output
        results = [tensor for _, tensor in tensors_in(made) if is_float(tensor)]
        bad = [tensor for tensor in results if not _all_finite(tensor)]
        if bad:
            birth = self._birth(kernel, name, args, before, kwargs, bad)
            for tensor in bad:
                if birth is not None:
                    self._origins[_memory(tensor)] = birth
        used = {_memory(tensor) for _, tensor in tensors_in((args, kwargs))}
        for tensor in results:
            memory = _memory(tensor)
            if memory not in used:  # a view keeps its maker
                self._makers[memory] = name
            if not any(tensor is other for other in bad) and _fills_its_memory(tensor):
                self._origins.pop(memory, None)

    def _birth(
        self,
        kernel: str,
        name: str,
        args: tuple[Any, ...],
        before: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        bad: list[torch.Tensor],
    ) -> Birth | None:
        inputs = [t for _, t in tensors_in((before, kwargs)) if is_float(t)]
        places = [t for _, t in tensors_in((args, kwargs)) if is_float(t)]
        is_nan = any(bool(tensor.isnan().any()) for tensor in bad)
        inherited = self._inherited(inputs, places)
        sick = any(not _all_finite(tensor) for tensor in inputs)
        had_nan = any(bool(tensor.isnan().any()) for tensor in inputs)
        if name in UNWRITTEN:
            return None
        if had_nan or (sick and not is_nan):
            return inherited
        on_purpose = not is_nan and name in WRITES_ON_PURPOSE
        node = self._trace.node if self.phase == "backward" else ""
        birth = Birth(
            phase=self._phase(),
            module=self._trace.module,
            module_type=self._trace.type_of(self._trace.module),
            operation=node or name,
            kernel=kernel,
            is_nan=is_nan,
            on_purpose=on_purpose,
            source=inherited,
            cause=None
            if on_purpose
            else cause_of(self._operation(name, node, before, kwargs, bad)),
        )
        self.births.append(birth)
        return birth

    def _operation(
        self,
        name: str,
        node: str,
        before: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        bad: list[torch.Tensor],
    ) -> OperationCall:
        return OperationCall(
            name=name,
            derivative_of=node,
            module_type=self._trace.type_of(self._trace.module),
            args=before,
            kwargs=kwargs,
            output=bad[0],
            makers=tuple(
                self._makers.get(_memory(a), "") if isinstance(a, torch.Tensor) else ""
                for a in before
            ),
        )

    def _phase(self) -> str:
        if self.phase == "forward" and not self._trace.type_of(self._trace.module):
            return "loss"
        return self.phase

    def _inherited(self, inputs: list[torch.Tensor], places: list[torch.Tensor]) -> Birth | None:
        """The origin among the inputs, preferring one that is no mask."""
        origins = [
            self._origins[_memory(place)]
            for value, place in zip(inputs, places, strict=True)
            if _memory(place) in self._origins and not _all_finite(value)
        ]
        return min(origins, key=lambda birth: birth.on_purpose, default=None)


def _all_finite(tensor: torch.Tensor) -> bool:
    # A sum carries every NaN and infinity along, and needs one pass where isfinite needs four.
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    wide = tensor.dtype if tensor.dtype == torch.float64 else torch.float32
    if tensor.element_size() == 1:  # FP8 has no such sums
        tensor = tensor.float()
    if math.isfinite(float(tensor.sum(dtype=wide))):
        return True
    return bool(torch.isfinite(tensor).all())


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr()) if is_float(tensor) else 0


def _fills_its_memory(tensor: torch.Tensor) -> bool:
    return tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes()


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
