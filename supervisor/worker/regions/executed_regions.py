"""Which forwards, backwards and updates of a fast-forward are really executed.

Hooks fill dictionaries, modules build what they need lazily, optimizers make their state: a script
that reads any of it must find it, from the first region of each kind on. What else that changed is
put back: weights and gradients at once, the rest at the target.

Parts of a model whose backward averages gradients over ranks, where torch's reducer does it. What
clipping returns where there is nothing to clip.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.nn import Module
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from supervisor.by_identity import ByIdentity, IdentitySet
from supervisor.training_state.tensors import local, outside_autograd, write_into
from supervisor.worker.gradients.replayed_gradients import GradientNotes
from supervisor.worker.ranks.silenced_collectives import SilencedCollectives

_REPLICATE = "torch.distributed._composable.replicate"
"""Imported by scripts that use it: it brings much of torch with it."""


class AveragingParts:
    """Finds those of each module: wrappers (`DistributedDataParallel`), and what torch's
    `replicate` has been called with, which keeps a wrapper outside of the model.

    A wrapper that no module has registered (in a list) is found when a forward calls it.
    """

    def __init__(self) -> None:
        self._called: weakref.WeakKeyDictionary[Module, weakref.WeakSet[Module]] = (
            weakref.WeakKeyDictionary()
        )
        self._numbers: weakref.WeakKeyDictionary[Module, int] = weakref.WeakKeyDictionary()
        self._made = 0

    def of(self, module: Module) -> list[Module]:
        """Returns the parts of `module`, as it is now, and those that its forward has called."""
        found = _registered(module)
        if not self._called:
            return found
        return found + [part for part in self._called.get(module, ()) if part not in found]

    def registered(self, module: Module) -> frozenset[int]:
        """Returns which parts `module` holds now, as numbers that no other part ever has."""
        return frozenset(self._number(part) for part in _registered(module))

    @contextlib.contextmanager
    def noticed(self, module: Module, *, averages: bool) -> Iterator[set[Module]]:
        """Within it a forward of `module` runs; yields the parts that it is the first to call.

        Args:
            averages: whether the forward prepares its parts for a backward.
        """
        kept: list[tuple[Module, bool]] = []
        new: set[Module] = set()

        def enters(part: Module, _: Any) -> None:
            if not isinstance(part, DistributedDataParallel):
                return
            if part not in self.of(module):
                new.add(part)
                self._called.setdefault(module, weakref.WeakSet()).add(part)
                hold_back(part)

        def hold_back(part: Module) -> None:
            if not averages:
                kept.append((part, averages_gradients(part)))
                set_averages(part, False)

        for part in self.of(module):
            hold_back(part)
        handle = register_module_forward_pre_hook(enters)
        try:
            yield new
        finally:
            handle.remove()
            for part, was in reversed(kept):
                set_averages(part, was)

    def _number(self, part: Module) -> int:
        if part not in self._numbers:
            self._numbers[part] = self._made
            self._made += 1
        return self._numbers[part]


def averages_gradients(part: Module) -> bool:
    """Whether the next backward of a part is to average."""
    if isinstance(part, DistributedDataParallel):
        return bool(part.require_backward_grad_sync)
    return not _state(part)._no_sync


def set_averages(part: Module, averages: bool) -> None:
    """Says whether the forwards to come prepare a part for a backward that averages."""
    if isinstance(part, DistributedDataParallel):
        part.require_backward_grad_sync = averages
    else:
        _state(part)._no_sync = not averages


def wrapper(part: Module) -> DistributedDataParallel | None:
    """Returns the wrapper of a part; None before its first forward."""
    if isinstance(part, DistributedDataParallel):
        return part
    found: DistributedDataParallel | None = getattr(_state(part), "_ddp", None)
    return found


def wrappers(parts: Iterable[Module]) -> Iterator[DistributedDataParallel]:
    """Yields the wrappers that there are."""
    yield from filter(None, map(wrapper, parts))


def _registered(module: Module) -> list[Module]:
    if isinstance(module, DistributedDataParallel):
        return [module]
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return []
    replicated = getattr(sys.modules.get(_REPLICATE), "DDP", None)
    kinds = (DistributedDataParallel, *filter(None, [replicated]))
    return [part for part in module.modules() if isinstance(part, kinds)]


def _state(part: Module) -> Any:
    return sys.modules[_REPLICATE].replicate.state(part)


HOOKED_AGAIN = 16
"""A module whose script adds hooks is executed anew so often; one that adds some to each output
would be executed always."""
_Kind = tuple[bool, bool, bool, frozenset[int]]
"""Of a forward: the module's id, whether it trains, has a graph, and averages gradients, and which
parts of it do."""


class ExecutedRegions:
    """Asked at each region. All of the first step with a graph is executed, and later the first
    forward of each module in each mode, with the backward behind it.

    Several ranks send what they send within the first step, or within the first forward of a kind:
    all execute those. DDP arranges its buckets anew at the forward behind its first backward, so
    that one is executed, too. Where its graph is static it only counts at its first backward, and
    arranges them behind its second: then the next step is executed like the first. A forward behind
    which no backward is executed does not prepare DDP for one: the next would be taken for it, in
    `no_sync`, too.

    Args:
        collectives: silenced but there.
        saw_gradients: called while the gradients of a backward that was executed are there.

    Attributes:
        is_first_step: all of this step with a graph is executed: no step of the main optimizer has
            ended, or only one whose graph is static.
        notes: what backwards write to parameters beside gradients.
    """

    def __init__(
        self,
        collectives: SilencedCollectives | None = None,
        saw_gradients: Callable[[Iterable[Optimizer]], object] = lambda optimizers: None,
    ) -> None:
        self.is_first_step = True
        self._saw_gradients = saw_gradients
        self._collectives = collectives or SilencedCollectives()
        self._sends = False
        self._graph_sends = False
        self._first_reduced: IdentitySet[Module] = IdentitySet()
        self._counts_graph = False
        self._averaging = AveragingParts()
        self._asked: Module | None = None
        self._prepares = True
        self._rearranged_next: IdentitySet[Module] = IdentitySet()
        self.notes = GradientNotes()
        self._has_graph = False
        self._added_within = 0
        self._forwards: ByIdentity[Module, dict[_Kind, tuple[int, int]]] = ByIdentity()
        self._updated: IdentitySet[Optimizer] = IdentitySet()

    def executes_forward(self, module: Module, *, anew: bool = False) -> bool:
        """Whether this call of `module` really happens, and its graph goes to the script.

        Args:
            anew: it does, on all ranks, like the first one of its kind.
        """
        has_graph = torch.is_grad_enabled()
        self._asked, parts = module, self._averaging.of(module)
        averages = all(map(averages_gradients, parts))
        held = self._averaging.registered(module)
        kinds = self._forwards.get(module)
        if kinds is None:
            kinds = self._forwards[module] = {}
        kind = (module.training, has_graph, averages, held)
        hooks = RemovableHandle.next_id - self._added_within
        is_new = kind not in kinds
        seen, times = kinds.get(kind, (-1, 0))
        is_new |= anew and module not in self._rearranged_next
        self._sends = self.is_first_step or is_new
        self._prepares = True
        if is_new:
            times = 0
            # In whatever mode the wrapper is: Lightning's stays in evaluation.
            if has_graph and averages and parts:
                self._saw_first_reduced(module)
        elif has_graph and module in self._rearranged_next:
            self._rearranged_next.discard(module)
            self._sends, self._prepares = True, False
            return True
        elif seen == hooks or times > HOOKED_AGAIN:
            self._sends = self._prepares = self.is_first_step and has_graph
            return self._sends
        kinds[kind] = hooks, times + 1
        self._has_graph = self._has_graph or has_graph
        self._graph_sends = self._graph_sends or (has_graph and self._sends)
        return True

    def run(self, call: Callable[[], Any]) -> Any:
        """Executes the forward that was asked about last, if only for the form of its output."""
        return self._execute(functools.partial(self._forward, call), sends=self._sends)

    def _forward(self, call: Callable[[], Any]) -> Any:
        module, prepares = self._asked, self._prepares
        if module is None:
            return call()
        with self._averaging.noticed(module, averages=prepares) as new:
            output = call()
        if (new and prepares and torch.is_grad_enabled()) or module in self._first_reduced:
            self._saw_first_reduced(module)  # a part may have made its wrapper in there
        return output

    def _saw_first_reduced(self, module: Module) -> None:
        self._first_reduced.add(module)
        parts = wrappers(self._averaging.of(module))
        self._counts_graph |= any(part.static_graph for part in parts)

    def forward_ended(self) -> None:
        """The forward that was asked about last is over, executed or not: the next one gives all
        ranks the first one's buffers if this one was to average."""
        has_graph = torch.is_grad_enabled()
        parts = [] if self._asked is None else self._averaging.of(self._asked)
        for part in wrappers(parts):
            part.require_forward_param_sync = has_graph and averages_gradients(part)
        self._asked = None  # a search drops its models

    def _execute(self, call: Callable[[], Any], *, sends: bool) -> Any:
        """Executes a region; the hooks that torch adds within one are not the script's."""
        before = RemovableHandle.next_id
        try:
            with self._collectives.really() if sends else contextlib.nullcontext():
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
        sends = self.is_first_step or self._graph_sends
        run = functools.partial(self._execute, functools.partial(call, roots), sends=sends)
        if not (self.is_first_step or self._has_graph):
            return
        before = self.notes.before(optimizers)
        if self.is_first_step:
            run()
            self._saw_gradients(optimizers)
            self.notes.executed(optimizers, before)
        else:
            earlier = [(p, p.grad) for p in _parameters(optimizers)]
            for parameter, _ in earlier:
                parameter.grad = None
            random_state = torch.get_rng_state()
            try:
                run()
                self._saw_gradients(optimizers)
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
        sending = contextlib.ExitStack()
        sending.enter_context(self._collectives.really())

        def put_back() -> None:
            sending.close()
            with outside_autograd():
                for parameter, value in kept:
                    write_into(parameter, value)

        return put_back

    def step_ended(self) -> None:
        self._has_graph = self._graph_sends = False
        self.is_first_step, self._counts_graph = self._counts_graph, False
        if not self.is_first_step:
            self._rearranged_next.update(self._first_reduced)
            self._first_reduced.clear()


def _parameters(optimizers: Iterable[Optimizer]) -> Iterator[torch.Tensor]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]


def no_norm(parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns 0 as the norm of all gradients, of the kind that clipping `parameters` returns: of
    DTensors (FSDP2, tensor parallelism) it is one, which a script asks for its `full_tensor`."""
    if not parameters:
        return torch.zeros(())
    zero = torch.zeros((), device=parameters[0].device)
    mesh = getattr(parameters[0], "device_mesh", None)
    if mesh is None:
        return zero
    from torch.distributed.tensor import DTensor, Replicate

    return DTensor.from_local(zero, mesh, [Replicate()] * mesh.ndim, run_check=False)
