"""Which forwards, backwards and updates of a fast-forward are really executed.

Hooks fill dictionaries, modules build what they need lazily, optimizers make their state: a script
that reads any of it must find it, from the first region of each kind on. What else that changed is
put back: weights and gradients at once, the rest at the target.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from supervisor.training_state.tensors import local, outside_autograd, write_into
from supervisor.worker.replay.gradient_notes import GradientNotes

HOOKED_AGAIN = 16
"""A module whose script adds hooks is executed anew so often; one that adds some to each output
would be executed always."""
_Kind = tuple[int, bool, bool]


class ExecutedRegions:
    """Asked at each region. All of the first step with a graph is executed, and later the first
    forward of each module in each mode, with the backward behind it.

    Attributes:
        is_first_step: no step of the lead has ended.
        notes: what backwards write to parameters beside gradients.
    """

    def __init__(self) -> None:
        self.is_first_step = True
        self.notes = GradientNotes()
        self._has_graph = False
        self._added_within = 0
        self._forwards: dict[_Kind, tuple[weakref.ref[Module], int, int]] = {}
        self._updated: weakref.WeakSet[Optimizer] = weakref.WeakSet()

    def executes_forward(self, module: Module) -> bool:
        """Whether this call of `module` really happens, and its graph goes to the script."""
        kind = (id(module), module.training, torch.is_grad_enabled())
        hooks = RemovableHandle.next_id - self._added_within
        known, seen, times = self._forwards.get(kind, (lambda: None, -1, 0))
        if known() is not module:  # the id may be that of one long gone
            times = 0
        elif seen == hooks or times > HOOKED_AGAIN:
            return self.is_first_step and kind[-1]
        self._forwards[kind] = weakref.ref(module), hooks, times + 1
        self._has_graph = self._has_graph or kind[-1]
        return True

    def run(self, call: Callable[[], Any]) -> Any:
        """Executes a region; the hooks that torch adds within one are not the script's."""
        before = RemovableHandle.next_id
        try:
            return call()
        finally:
            self._added_within += RemovableHandle.next_id - before

    def backward(
        self, roots: Any, call: Callable[[Any], Any], optimizers: Iterable[Optimizer]
    ) -> None:
        """Executes a backward where the script has got a real graph since the last step.

        Behind the first step the graph holds stand-ins, too: it may refuse, and its gradients are
        thrown away.
        """
        run = functools.partial(self.run, functools.partial(call, roots))
        before = self.notes.before(optimizers) if self.is_first_step or self._has_graph else {}
        if self.is_first_step:
            run()
            self.notes.executed(optimizers, before)
        elif self._has_graph:
            earlier = [(p, p.grad) for p in _parameters(optimizers)]
            for parameter, _ in earlier:
                parameter.grad = None
            random_state = torch.get_rng_state()
            try:
                run()
            except Exception:  # a replay without it is what it was before
                pass
            finally:
                torch.set_rng_state(random_state)
                for parameter, gradient in earlier:
                    parameter.grad = gradient
                self.notes.executed(optimizers, before)

    def begin_update(self, optimizer: Optimizer) -> Callable[[], None] | None:
        """Lets the first update of an optimizer happen; returns what puts the weights back then.

        None for a later one, which is to be left out.
        """
        if optimizer in self._updated:
            return None
        self._updated.add(optimizer)
        kept = [(p, local(p).to("cpu", copy=True)) for p in _parameters([optimizer])]

        def put_back() -> None:
            with outside_autograd():
                for parameter, value in kept:
                    write_into(parameter, value)

        return put_back

    def step_ended(self) -> None:
        self.is_first_step = self._has_graph = False


def _parameters(optimizers: Iterable[Optimizer]) -> Iterator[torch.Tensor]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]
