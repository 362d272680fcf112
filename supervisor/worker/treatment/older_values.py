"""Computes the script's step once more beside it, as older weights would have it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from supervisor.worker.core.operator_form import (
    form_of,
    generators_of,
    inputs_of,
    mapped,
    tensors_in,
)

SWEEP_EVERY = 32
"""Calls after which the second values of freed memory are freed, too."""


@dataclass(frozen=True, slots=True)
class _Second:
    """What a piece of the script's memory would hold; `of` keeps its address from being used
    again."""

    of: StorageWeakRef
    values: torch.UntypedStorage


class OlderValues(TorchDispatchMode):
    """While it is on, each operator that reads what depends on the weights is called a second time,
    with what they would have given, before its own call. So an answer is there where the loss is.

    Nothing of the script's is written, and its Python runs once: second values lie in memory of
    their own, found by the memory for which they stand, so that views and writes in place need no
    care. Generators stand where they stood: both draw the same. Nothing reaches autograd.

    Args:
        weights: the script's tensors, each with its older values.
        allows: whether second values may take so many bytes.

    Attributes:
        refusal: why nothing is computed any more; "" while it is.
    """

    supports_higher_order_operators = True

    def __init__(
        self, weights: list[tuple[torch.Tensor, torch.Tensor]], allows: Callable[[int], bool]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.refusal = ""
        self._is_on = False
        self._allows = allows
        self._size = self._asked_for = self._calls = 0
        self._memory: dict[int, _Second] = {}
        try:
            for live, _ in weights:
                self._own(live)
            with torch.no_grad():
                for live, older in weights:
                    self._older(live).copy_(older)
        except Exception as error:
            self._give_up(f"{type(error).__name__}: {error}")

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # it would be imported

    def start(self) -> None:
        if not (self._is_on or self.refusal):
            if torch._C._len_torch_dispatch_stack():
                self._give_up("the script looks at operators itself")
                return
            self.__enter__()  # type: ignore[no-untyped-call]
            self._is_on = True

    def stop(self) -> None:
        """The script may have begun modes of its own meanwhile, which stay."""
        if not self._is_on:
            return
        self._is_on = False
        others = []
        while torch._C._len_torch_dispatch_stack():
            mode = torch._C._get_dispatch_stack_at(torch._C._len_torch_dispatch_stack() - 1)
            if mode is self:
                self.__exit__(None, None, None)
                break
            others.append(_python_dispatch._pop_mode())
        for mode in reversed(others):
            _python_dispatch._push_mode(mode)

    def value(self, tensor: torch.Tensor) -> float | None:
        """The number that `tensor` would hold; None if it does not depend on the weights, or was
        not followed. Called while it is off."""
        if self.refusal or not self._has(tensor):
            return None
        return float(self._older(tensor).item())

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        second = None
        if self._is_on and not self.refusal:  # it stays where another thread has stopped it
            try:
                with torch._C._AutoDispatchBelowAutograd():
                    second = self._call(operator, args, kwargs)
            except Exception as error:
                self._give_up(f"{operator}: {type(error).__name__}: {error}")
        result = operator(*args, **kwargs)
        if second is not None and not self.refusal:
            try:
                self._note(result, second)
            except Exception as error:
                self._give_up(f"{operator}: {type(error).__name__}: {error}")
        return result

    def _give_up(self, why: str) -> None:
        self.refusal = why
        self._memory.clear()

    def _call(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns what the operator gives on second values; None where it reads none."""
        self._sweep()
        if not any(map(self._has, tensors_in((args, kwargs)))) or _computes_nothing(operator):
            return None
        form = form_of(operator)
        inputs = inputs_of(form, args, kwargs) if form is not None else None
        if inputs is None:
            raise NotImplementedError("it cannot be calculated twice")
        for tensor in inputs.written:
            self._own(tensor)
        drawn_from = []
        if torch.Tag.nondeterministic_seeded in operator.tags:
            drawn_from = [(one, one.get_state()) for one in generators_of(inputs)]
        try:
            return operator(*mapped(args, self._older), **mapped(kwargs, self._older))
        finally:
            for generator, state in drawn_from:
                generator.set_state(state)

    def _note(self, result: Any, second: Any) -> None:
        for tensor, older in zip(tensors_in(result), tensors_in(second), strict=True):
            if self._has(tensor):
                continue  # written in place, or its input
            memory, values = tensor.untyped_storage(), older.untyped_storage()
            is_alike = tensor.shape == older.shape and tensor.stride() == older.stride()
            is_alike = is_alike and tensor.storage_offset() == older.storage_offset()
            if not is_alike or memory.nbytes() != values.nbytes():
                raise ValueError("other weights give another shape")
            self._take(memory, values)

    def _has(self, tensor: torch.Tensor) -> bool:
        if tensor.layout is not torch.strided:
            raise NotImplementedError("a tensor without ordinary memory")
        return tensor.untyped_storage()._cdata in self._memory

    def _older(self, tensor: torch.Tensor) -> torch.Tensor:
        second = self._memory.get(tensor.untyped_storage()._cdata)
        if second is None:
            return tensor
        like = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return like.set_(second.values, tensor.storage_offset(), tensor.size(), tensor.stride())

    def _own(self, tensor: torch.Tensor) -> None:
        if not self._has(tensor):
            memory = tensor.untyped_storage()
            self._take(memory, memory.clone())

    def _take(self, memory: torch.UntypedStorage, values: torch.UntypedStorage) -> None:
        self._memory[memory._cdata] = _Second(StorageWeakRef(memory), values)
        self._size += values.nbytes()
        if self._size > self._asked_for:
            self._asked_for = 2 * self._size  # asking costs a look at the system
            if not self._allows(self._asked_for):
                raise MemoryError("there is no room")

    def _sweep(self) -> None:
        self._calls += 1
        if self._calls % SWEEP_EVERY == 0:
            for key in [key for key, second in self._memory.items() if second.of.expired()]:
                self._size -= self._memory.pop(key).values.nbytes()


@functools.cache
def _computes_nothing(operator: Any) -> bool:
    """A view, whose memory is its input's, or new memory that is left as it was found."""
    if not isinstance(operator, torch._ops.OpOverload) or operator.namespace != "aten":
        return False
    name, returned = operator._schema.name, operator._schema.returns
    is_view = any(one.alias_info and not one.alias_info.is_write for one in returned)
    is_named_so = ("empty" in name or "view" in name) and not name.endswith("_copy")
    return is_view or is_named_so or torch.Tag.inplace_view in operator.tags
