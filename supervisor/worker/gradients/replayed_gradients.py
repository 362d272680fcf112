"""Gradients that a script looks at or asks for in a fast-forward."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.autograd.graph import GradientEdge
from torch.nn import Module
from torch.optim import Optimizer
from torch.overrides import is_tensor_like
from torch.utils.weak import WeakIdKeyDictionary

from supervisor.by_identity import ByIdentity
from supervisor.training_state.tensors import tensors_within


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


_NODES = 10_000
"""Of a graph that is gone through; larger ones are none of a stand-in."""


class LeafGradients:
    """Gives zeros to leaves that a backward would have given a gradient, and to values between for
    which the script asked (`retain_grad`); their optimizers' parameters get theirs elsewhere.

    Args:
        retained: those values between, as keys.
        is_ours: whether a leaf is a stand-in's, which the script cannot reach.
    """

    def __init__(
        self, retained: Mapping[torch.Tensor, None], is_ours: Callable[[torch.Tensor], bool]
    ) -> None:
        self._retained = retained
        self._is_ours = is_ours
        self._since_update: list[torch.Tensor] = []
        self._given: Any = WeakIdKeyDictionary()
        self._executed: list[Module] = []
        self._left_out: list[Module] = []
        self._reached: ByIdentity[Module, list[weakref.ref[torch.Tensor]]] = ByIdentity()

    def executed_forward(self, module: Module) -> None:
        """Called behind a forward that was executed."""
        if torch.is_grad_enabled():
            self._executed.append(module)

    def executed_backward(self) -> None:
        """Called behind a backward that may have been executed."""
        for module in self._executed:
            found: list[weakref.ref[torch.Tensor]] = [
                weakref.ref(p) for p in module.parameters() if p.grad is not None
            ]
            if found:
                self._reached[module] = found

    def saw(self, module: Module, value: Any) -> None:
        """Called with a module whose forward is left out, and what that was given and puts out."""
        if module in self._reached and torch.is_grad_enabled():
            self._left_out.append(module)
        with torch._C.DisableTorchFunctionSubclass():
            self._since_update += [one for one in tensors_within(value) if one.requires_grad]

    def give(self, roots: Any) -> None:
        """Called in place of a backward."""
        values = [*self._since_update, *tensors_within(roots)]
        for value in self._retained:
            if value.grad is None:
                self._give(value)
        for leaf in _leaves(values):
            if leaf.grad is None and not self._is_ours(leaf):
                self._give(leaf)
        for module in self._left_out:
            for reached in self._reached.get(module, ()):
                parameter = reached()
                if parameter is not None and parameter.grad is None and parameter.requires_grad:
                    self._give(parameter)

    def take_back(self) -> None:
        """Called at the target, before what the recorded run had is put back: it may have had none
        where a forward is no part of the graph of the next backward."""
        for value, gradient in list(self._given.items()):
            if value.grad is gradient:
                value.grad = None

    def _give(self, value: torch.Tensor) -> None:
        value.grad = gradient = torch.zeros_like(value, requires_grad=False)
        self._given[value] = gradient

    def step_ended(self) -> None:
        self._since_update.clear()
        self._executed.clear()
        self._left_out.clear()


def _leaves(values: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    yield from (value for value in values if value.is_leaf and value.requires_grad)
    waiting = [value.grad_fn for value in values if value.grad_fn is not None]
    seen = set(waiting)
    while waiting and len(seen) < _NODES:
        node: Any = waiting.pop()
        if (leaf := getattr(node, "variable", None)) is not None:
            yield leaf
        for below, _ in node.next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                waiting.append(below)


class ZeroGradients:
    """Gives ``p.grad`` to parameters that have none; no optimizer gets to see it."""

    def __init__(self) -> None:
        self._known: ByIdentity[torch.Tensor, torch.Tensor] = ByIdentity()
        # Zeros → how many writes torch had counted when they were made.
        self._writes: ByIdentity[torch.Tensor, int] = ByIdentity()
        self._sparse: ByIdentity[torch.Tensor, torch.Tensor] = ByIdentity()

    def saw(self, optimizers: Iterable[Optimizer]) -> None:
        """Called where a backward was really executed: from here on a parameter whose gradient it
        left sparse gets a sparse one."""
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    gradient = parameter.grad
                    if gradient is not None and gradient.layout == torch.sparse_coo:
                        self._sparse[parameter] = gradient.detach()

    def give(self, optimizers: Iterable[Optimizer]) -> None:
        """Called in place of a backward."""
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is None and parameter.requires_grad:
                        parameter.grad = self.of(parameter)

    def are_still_zero(self, gradient: torch.Tensor) -> bool:
        """Whether it was given here, and nobody has written to it since."""
        writes = self._writes.get(gradient)
        return writes is not None and bool(writes == gradient._version)

    def of(self, parameter: torch.Tensor) -> torch.Tensor:
        """Returns what a parameter gets."""
        zeros: torch.Tensor | None = self._known.get(parameter)
        if zeros is None:
            sparse = self._sparse.get(parameter)
            if sparse is not None:
                zeros = _sparse_zeros(sparse)
            else:
                zeros = torch.zeros_like(parameter, requires_grad=False)
            self._known[parameter] = zeros
            if not zeros.is_inference():
                self._writes[zeros] = zeros._version
        return zeros


def _sparse_zeros(gradient: torch.Tensor) -> torch.Tensor:
    """Returns zeros at the same rows."""
    indices, values = gradient._indices(), torch.zeros_like(gradient._values())
    zeros = torch.sparse_coo_tensor(indices.clone(), values, gradient.shape)
    return zeros._coalesced_(gradient.is_coalesced())


_ABSENT = object()


class GradientNotes:
    """Gives parameters again what a backward that was really executed wrote to them.

    An optimizer around another takes it (DP-SGD: ``p.grad_sample``) and clears it: without it the
    script would raise in a fast-forward. Tensors come as zeros of the last such backward's shape.
    """

    def __init__(self) -> None:
        self._kept: ByIdentity[torch.Tensor, dict[str, Any]] = ByIdentity()

    def before(self, optimizers: Iterable[Optimizer]) -> ByIdentity[torch.Tensor, dict[str, Any]]:
        """Returns what parameters hold; called before a backward is executed."""
        found: ByIdentity[torch.Tensor, dict[str, Any]] = ByIdentity()
        for parameter in _parameters(optimizers):
            found[parameter] = dict(vars(parameter))
        return found

    def executed(
        self,
        optimizers: Iterable[Optimizer],
        before: ByIdentity[torch.Tensor, dict[str, Any]],
    ) -> None:
        """Called behind that backward."""
        for parameter in _parameters(optimizers):
            earlier = before.get(parameter, {})
            written = {
                name: _zeros_like(value)
                for name, value in vars(parameter).items()
                if _holds_tensors(value) and earlier.get(name, _ABSENT) is not value
            }
            if written:
                self._kept[parameter] = written

    def give(self, optimizers: Iterable[Optimizer]) -> None:
        """Called in place of a backward."""
        if not self._kept:
            return
        for parameter in _parameters(optimizers):
            for name, value in self._kept.get(parameter, {}).items():
                if vars(parameter).get(name) is None:
                    setattr(parameter, name, _zeros_like(value))


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, torch.Tensor) for item in value)
    return isinstance(value, torch.Tensor)


def _zeros_like(value: Any) -> Any:
    if isinstance(value, list):
        return [_zeros_like(item) for item in value]
    return torch.zeros_like(value, requires_grad=False)


def _parameters(optimizers: Iterable[Optimizer]) -> Iterator[torch.Tensor]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]
