"""What `torch.autograd.grad` gives in a fast-forward: zeros in the form that the real one has."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch.autograd.graph import GradientEdge
from torch.overrides import is_tensor_like


def _inputs_of(call: functools.partial[Any]) -> list[Any]:
    """Returns what the gradients are asked of; iterators were listed before."""
    inputs = _asked(call)["inputs"]
    if isinstance(inputs, Mapping):
        return list(inputs.values())
    is_one = is_tensor_like(inputs) or isinstance(inputs, GradientEdge)
    return [inputs] if is_one else list(inputs)


def zero_gradients(call: functools.partial[Any], unused: Collection[int]) -> Any:
    """Returns zeros for each input of a call, and None for the `unused` ones.

    With ``create_graph`` they require a gradient and are no leaves, so that the script may go on
    with them as with the real ones; without, they are plain tensors.

    Args:
        call: of `torch.autograd.grad`.
        unused: places of the inputs that the recorded run had no gradient of.
    """
    asked = _asked(call)
    rows = _rows(asked["grad_outputs"]) if asked["is_grads_batched"] else ()
    found = [
        None if place in unused else _zeros(given, rows, wants_graph=asked["create_graph"])
        for place, given in enumerate(_inputs_of(call))
    ]
    inputs = asked["inputs"]
    if isinstance(inputs, Mapping):
        return dict(zip(inputs, found, strict=True))
    return tuple(found)


def _asked(call: functools.partial[Any]) -> dict[str, Any]:
    bound = inspect.signature(call.func).bind(*call.args, **call.keywords)
    bound.apply_defaults()
    return bound.arguments


def _rows(grad_outputs: Any) -> tuple[int, ...]:
    given = [grad_outputs] if isinstance(grad_outputs, torch.Tensor) else grad_outputs or []
    return next(((int(g.shape[0]),) for g in given if g is not None), ())


def _zeros(given: Any, rows: tuple[int, ...], *, wants_graph: bool) -> torch.Tensor:
    if isinstance(given, GradientEdge):
        metadata = given.node._input_metadata[given.output_nr]
        shape = (*rows, *metadata.shape)
        zeros = torch.zeros(shape, dtype=metadata.dtype, device=metadata.device)
    elif rows:
        zeros = torch.zeros((*rows, *given.shape), dtype=given.dtype, device=given.device)
    else:
        zeros = torch.zeros_like(given, requires_grad=False)
    return zeros.requires_grad_() * 1 if wants_graph else zeros
