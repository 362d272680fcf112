"""What forwards put out during a fast-forward: the output of the first such call, again."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import Module
from torch.utils import _pytree as pytree

from supervisor.by_identity import ByIdentity, IdentitySet
from supervisor.training_state.tensors import cloned
from supervisor.worker.core.training_hooks import Call

_Forwards = dict[Module, Any]


class _Kept(NamedTuple):
    output: Any
    forwards: _Forwards


class CachedOutputs:
    """Computes one forward for each module, mode and kind of input, and hands out copies of it.

    The values are of no use; shapes, types and structure are what the script goes on with. Where
    the real one has set a `forward` of its own on a module within (Lightning has a wrapper call
    another method so, once, and takes it back in there), so do those that stand for it.
    """

    def __init__(self) -> None:
        self._known: ByIdentity[Module, dict[tuple[Any, ...], _Kept]] = ByIdentity()
        self._kept: IdentitySet[torch.Tensor] = IdentitySet()

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether it belongs to an output that is kept here: the script has copies of those."""
        return tensor in self._kept

    def output(
        self,
        module: Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        call: Call,
        *,
        executes: bool = False,
    ) -> Any:
        """Returns an output that the script may change in place and call backward on.

        The random generators are as before, unless it is executed.

        Args:
            module, args, kwargs: of the call.
            call: runs the real forward.
            executes: this one really happens, and the script gets its output with its graph.
        """
        signature = (
            module.training,
            torch.is_grad_enabled(),
            argument_form(args, kwargs),
        )
        kept = self._known.get(module)
        if kept is None:
            kept = self._known[module] = {}
        if executes:
            output, forwards = self._really(module, call)
            kept[signature] = self._keep(output, forwards)
            return output
        known = kept.get(signature)
        if known is None:
            # Not under no_grad: a forward may ask for a gradient itself, as for a force.
            random_state = torch.get_rng_state()
            known = kept[signature] = self._keep(*self._really(module, call))
            torch.set_rng_state(random_state)
        else:
            _set_forwards(known.forwards)
        return _fresh(known.output)

    def watch(self, reached: Callable[[], None]) -> None:
        """Has `reached` called if a backward comes to one that was handed out."""
        with torch._C.DisableTorchFunctionSubclass():
            for one in self._kept:
                if one.requires_grad:
                    one.register_hook(lambda _: reached())

    def _really(self, module: Module, call: Call) -> tuple[Any, _Forwards]:
        before = _own_forwards(module)
        output = call()
        return output, _changed(before, _own_forwards(module))

    def _keep(self, output: Any, forwards: _Forwards) -> _Kept:
        known = _Kept(_detached(output), forwards)
        leaves = pytree.tree_leaves(known.output)
        self._kept.update(one for one in leaves if isinstance(one, torch.Tensor))
        return known


def _own_forwards(module: Module) -> _Forwards:
    """Returns what has been set as `forward` on modules themselves, not on their classes."""
    return {part: vars(part)["forward"] for part in module.modules() if "forward" in vars(part)}


def _changed(before: _Forwards, after: _Forwards) -> _Forwards:
    """Returns what was set in between; None for what was deleted."""
    deleted = dict.fromkeys(before.keys() - after.keys())
    return deleted | {part: own for part, own in after.items() if before.get(part) is not own}


def _set_forwards(forwards: _Forwards) -> None:
    for part, own in forwards.items():
        if own is None:
            vars(part).pop("forward", None)
        else:
            vars(part)["forward"] = own


def _detached(output: Any) -> Any:
    def copied(tensor: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            made = cloned(tensor)
        with torch._C.DisableTorchFunctionSubclass():
            return made.requires_grad_(tensor.requires_grad)

    return pytree.tree_map_only(torch.Tensor, copied, output)


def _fresh(output: Any) -> Any:
    if isinstance(output, torch.Tensor):
        return _again(output)
    return pytree.tree_map(_again, output)


def _again(value: Any) -> Any:
    if type(value) is torch.Tensor:
        return value.clone()  # no leaf, if it requires a gradient: the script may write into it
    if isinstance(value, torch.Tensor):
        return cloned(value)
    return copy.copy(value) if isinstance(value, (list, dict)) else value


MOST_VALUES = 1000
"""Of one call: an argument may lead to the whole program."""


def argument_form(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Returns what two calls have in common whose outputs look alike; it can be hashed.

    Shapes and types of tensors, wherever they lie in objects and containers, and the numbers and
    texts among the direct arguments.
    """
    if len(args) == 1 and not kwargs and type(args[0]) is torch.Tensor:
        return (), (args[0].shape, args[0].dtype)
    plain = tuple(v for v in (*args, *kwargs.values()) if isinstance(v, (int, str, bool)))
    return (plain, *_shapes([*args, *kwargs.values()]))


def _shapes(arguments: Sequence[Any]) -> Iterator[Any]:
    waiting = deque(arguments)
    met: dict[
        int, Any
    ] = {}  # values that are made when they are asked for are kept, with their ids
    while waiting and len(met) < MOST_VALUES:
        value = waiting.popleft()
        if id(value) in met:
            continue
        met[id(value)] = value
        if isinstance(value, (torch.Tensor, np.ndarray)):
            yield value.shape, value.dtype
        elif isinstance(value, (list, tuple)):
            yield len(value)
            waiting.extend(value)
        elif isinstance(value, Mapping):
            yield len(value)
            waiting.extend(value.values())
        elif not isinstance(value, (Module, type)):
            waiting.extend(getattr(value, "__dict__", {}).values())
