"""Which of torch's operators can be calculated a second time, and on what."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_WRITTEN_SILENTLY = ("running_mean", "running_var")
"""Arguments of batch normalisations into which torch writes though their schemas do not say so."""


@dataclass(frozen=True, slots=True)
class OperatorForm:
    """What an operator's schema says of it.

    Attributes:
        names: of its positional arguments.
        written: names of the arguments into which it writes.
        own: for each value that it returns: it is new, and not one of `written`.
    """

    names: tuple[str, ...]
    written: frozenset[str]
    own: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Inputs:
    """What an operator is called with, and of that the tensors into which it writes."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    written: list[torch.Tensor]


@functools.cache
def form_of(operator: Any) -> OperatorForm | None:
    """Returns None for what is never calculated twice: what is not torch's own (collectives, a
    package's kernels, control flow), views, and memory that is left as it was found."""
    if not isinstance(operator, torch._ops.OpOverload) or operator.namespace != "aten":
        return None
    schema = operator._schema
    returned = [value.alias_info for value in schema.returns]
    is_view = any(alias is not None and not alias.is_write for alias in returned)
    if is_view or not returned or "empty" in schema.name or "view" in schema.name:
        return None
    if torch.Tag.inplace_view in operator.tags:
        return None
    written = frozenset(
        argument.name
        for argument in schema.arguments
        if (argument.alias_info is not None and argument.alias_info.is_write)
        or argument.name in _WRITTEN_SILENTLY
    )
    return OperatorForm(
        names=tuple(argument.name for argument in schema.arguments),
        written=written,
        own=tuple(alias is None for alias in returned),
    )


def inputs_of(
    form: OperatorForm, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Inputs | None:
    """Returns what an operator is called with; None if a tensor is not a plain one."""
    found = list(tensors_in((args, kwargs)))
    if not found or not all(map(_is_plain, found)):
        return None
    named = [*zip(form.names, args, strict=False), *kwargs.items()]
    written = [
        tensor for name, value in named if name in form.written for tensor in tensors_in(value)
    ]
    return Inputs(args=args, kwargs=kwargs, written=written)


def copied(inputs: Inputs) -> Inputs:
    """Returns inputs for another call: copies of what is written to, and of what shares its memory;
    all else is the same."""
    memory = {tensor.untyped_storage().data_ptr() for tensor in inputs.written}
    copies: dict[int, torch.Tensor] = {}

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        if not memory or tensor.untyped_storage().data_ptr() not in memory:
            return tensor
        if id(tensor) not in copies:
            copies[id(tensor)] = _copy(tensor.detach())
        return copies[id(tensor)]

    return Inputs(
        args=mapped(inputs.args, copy),
        kwargs=mapped(dict(inputs.kwargs), copy),
        written=[copy(tensor) for tensor in inputs.written],
    )


def generators_of(inputs: Inputs) -> list[torch.Generator]:
    """From which an operator may draw random numbers."""
    given = [*inputs.args, *inputs.kwargs.values()]
    found = [value for value in given if isinstance(value, torch.Generator)]
    if not found:
        found = [torch.default_generator]
        if torch.cuda.is_initialized():
            found.append(torch.cuda.default_generators[torch.cuda.current_device()])
    return found


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of an argument or a result, in their order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Returns an argument with each of its tensors changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(item, change) for item in value)
    if isinstance(value, dict):
        return {name: mapped(item, change) for name, item in value.items()}
    return value


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """With the same strides: kernels round otherwise where memory has no gaps."""
    if 0 in tensor.stride():
        return tensor.clone()
    empty = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return empty.copy_(tensor)


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) in _PLAIN
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_meta
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor._is_zerotensor()
    )
