"""What forwards put out during a fast-forward: the output of the first such call, again."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import Module
from torch.utils import _pytree as pytree

from supervisor.worker.interception.training_hooks import Call
from supervisor.worker.replay.argument_form import argument_form

_Forwards = dict[Module, Any]


class CachedOutputs:
    """Computes one forward for each module, mode and kind of input, and hands out copies of it.

    The values are of no use; shapes, types and structure are what the script goes on with. Where
    the real one has set a `forward` of its own on a module within (Lightning has a wrapper call
    another method so, once, and takes it back in there), so do those that stand for it.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[weakref.ref[Module], Any]] = {}
        self._forwards: dict[tuple[Any, ...], _Forwards] = {}
        self._kept: dict[int, weakref.ref[torch.Tensor]] = {}

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether it belongs to an output that is kept here: the script has copies of those."""
        known = self._kept.get(id(tensor))
        return known is not None and known() is tensor

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
            id(module),
            module.training,
            torch.is_grad_enabled(),
            argument_form(args, kwargs),
        )
        if executes:
            output = self._really(signature, module, call)
            self._keep(signature, module, output)
            return output
        known = self._known.get(signature)
        if known is None or known[0]() is not module:  # the id may be that of one long gone
            # Not under no_grad: a forward may ask for a gradient itself, as for a force.
            random_state = torch.get_rng_state()
            output = self._really(signature, module, call)
            known = self._keep(signature, module, output)
            torch.set_rng_state(random_state)
        else:
            _set_forwards(self._forwards[signature])
        return _fresh(known[1])

    def watch(self, reached: Callable[[], None]) -> None:
        """Has `reached` called if a backward comes to one that was handed out."""
        for _, output in self._known.values():
            for one in pytree.tree_leaves(output):
                if isinstance(one, torch.Tensor) and one.requires_grad:
                    one.register_hook(lambda _: reached())

    def _really(self, signature: tuple[Any, ...], module: Module, call: Call) -> Any:
        before = _own_forwards(module)
        output = call()
        self._forwards[signature] = _changed(before, _own_forwards(module))
        return output

    def _keep(
        self, signature: tuple[Any, ...], module: Module, output: Any
    ) -> tuple[weakref.ref[Module], Any]:
        known = self._known[signature] = (weakref.ref(module), _detached(output))
        for one in pytree.tree_leaves(known[1]):
            if isinstance(one, torch.Tensor):
                self._kept[id(one)] = weakref.ref(one)
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
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)

    return pytree.tree_map_only(torch.Tensor, copied, output)


def _fresh(output: Any) -> Any:
    if isinstance(output, torch.Tensor):
        return output.clone()  # no leaf, if it requires a gradient: the script may write into it
    return pytree.tree_map(_again, output)


def _again(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return copy.copy(value) if isinstance(value, (list, dict)) else value
