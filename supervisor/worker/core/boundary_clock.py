"""When a step is over: its optimizers have all stepped, and the next forward begins.

The closure of an optimizer's step, with a point after its backward at which the step is judged.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from supervisor.by_identity import ByIdentity, IdentitySet
from supervisor.worker.core.call_state import CallState

TAKES_OVER_AFTER = 128
"""More than any usual game lets one side step alone: a WGAN's critic makes 100 updates for each of
its generator's first 25 (Arjovsky et al. 2017, their published code)."""


class BoundaryClock:
    """Counts updates of the main optimizer and waits for those that follow it.

    The rules of which is the main one, and of when a step is over, are in docs/design/boundary.md.
    The main optimizer is held weakly, so that a model which the script has dropped is freed.

    Args:
        of_ranks: several ranks have their boundaries at the same place: an evaluation on one of
            them alone, without a graph, is none.

    Attributes:
        at_update: boundaries are at the end of an update, not at the next forward: the script
            begins a step's graph before its first forward.
        main: called, returns the main optimizer; None until an optimizer has stepped, and when it
            is gone.
        is_due: the next outermost forward is a boundary.
        has_forwards: an outermost forward was seen.
        is_new_main: the main optimizer has just changed with its first update; for whoever asked
            `is_main`.
        is_new_training: and it updates other weights than the one before.
        by_others: updates of other optimizers since the main optimizer's last one.
        evaluations: how often each optimizer evaluated its closure in its last step.
    """

    def __init__(self, *, of_ranks: bool = False) -> None:
        self.at_update = False
        self.of_ranks = of_ranks
        self._graph_nodes: int | None = None
        self.main: Callable[[], Optimizer | None] = _nobody
        self.is_due = True
        self.has_forwards = False
        self._updates = 0
        self.by_others = 0
        # None of them is waited for once the script has dropped it.
        self._seen: IdentitySet[Optimizer] = IdentitySet()
        self._awaited: IdentitySet[Optimizer] = IdentitySet()
        self._in_backward: IdentitySet[Optimizer] = IdentitySet()
        self._beside_main: IdentitySet[Optimizer] = IdentitySet()
        self.evaluations: ByIdentity[Optimizer, int] = ByIdentity()
        self._last_other: Callable[[], Optimizer | None] = _nobody
        self._in_a_row = 0
        self._others: IdentitySet[Optimizer] = IdentitySet()
        self._is_alone = True  # no other optimizer has stepped
        self._weight: Callable[[], torch.Tensor | None] = _nobody
        self.is_new_main = self.is_new_training = False

    def is_main(self, optimizer: Optimizer) -> bool:
        """Whether `optimizer` is the main optimizer, or becomes it. Asked before its update."""
        self.is_new_main = False
        if optimizer is self.main():
            return True
        if self.main is not _nobody:
            shares = self._shares_weights(optimizer)
            if self.main() is not None and not (shares and self._is_late(optimizer)):
                return False
            self.is_new_main, self.is_new_training = True, not shares
            if self._seen or self._awaited:
                self._updates = 0  # who follows in this game is not known yet
            self._awaited, self._seen = IdentitySet(), IdentitySet()
            self._last_other, self._in_a_row, self.by_others = _nobody, 0, 0
            earlier = self.main()
            if earlier is not None:
                self._others.add(earlier)
        self._take_as_main(optimizer)
        return True

    def _take_as_main(self, optimizer: Optimizer) -> None:
        self.main = weakref.ref(optimizer)
        weight = next((p for group in optimizer.param_groups for p in group["params"]), None)
        self._weight = _nobody if weight is None else weakref.ref(weight)

    def _shares_weights(self, optimizer: Optimizer) -> bool:
        weight = self._weight()
        groups = optimizer.param_groups
        return weight is not None and any(p is weight for group in groups for p in group["params"])

    def _is_late(self, optimizer: Optimizer) -> bool:
        """Whether it steps for the first time, when a round of updates is over: not one of two
        that take turns on the same weights."""
        return self._updates > 1 and optimizer not in self._others

    def updated(self, optimizer: Optimizer) -> bool:
        """Takes note of an update, right after it (or after the scaler left it out).

        Returns:
            Whether `optimizer` has just become the main optimizer of another training, with its
            next update.
        """
        self._graph_nodes = graph_nodes()
        if optimizer is not self.main():
            self._is_alone = False
            self.by_others += 1
            self._others.add(optimizer)
            self._seen.add(optimizer)
            self._awaited.discard(optimizer)
            self.is_due = self._updates > 1 and not self._awaited
            return self._takes_over(optimizer)
        self._updates += 1
        if self.is_due:  # no forward could be seen since the last boundary (all are compiled)
            self.has_forwards = False
        if self._is_alone:
            self.is_due = self._updates > 1
            return False
        self.by_others = 0
        if self._seen or self._awaited:
            self._awaited, self._seen = self._seen, IdentitySet()
        self._in_a_row = 0
        self.is_due = self._updates > 1 and not self._awaited
        return False

    def updated_in_backward(self, optimizer: Optimizer) -> None:
        """Behind `updated`, where the update was made within a backward."""
        self._in_backward.add(optimizer)

    def backward_ended(self) -> None:
        """A backward in which optimizers have stepped is over. Those that did so beside the main
        optimizer
        need not do it in each of its own: a layer may be left out."""
        if self.main() in self._in_backward:
            self._beside_main.update(self._in_backward)
            for optimizer in self._beside_main:
                self._awaited.discard(optimizer)
            self.is_due = self._updates > 1 and not self._awaited
        self._in_backward.clear()

    def _takes_over(self, other: Optimizer) -> bool:
        if other is not self._last_other():
            self._last_other = weakref.ref(other)
            self._in_a_row = 0
        self._in_a_row += 1
        if self._in_a_row < TAKES_OVER_AFTER:
            return False
        self._take_as_main(other)
        self._last_other = _nobody
        self._in_a_row = self.by_others = 0
        self._awaited, self._seen = IdentitySet(), IdentitySet()
        return True

    def is_before_training(self) -> bool:
        """Whether the outermost forward that begins is one of a rank alone, before the training:
        what ranks then send each other is as before their first step."""
        is_first = not self.has_forwards and self.main is _nobody
        return self.of_ranks and is_first and not torch.is_grad_enabled()

    def is_due_here(self) -> bool:
        """Whether the outermost forward that begins is a boundary."""
        is_place = not self.at_update and (not self.of_ranks or torch.is_grad_enabled())
        return self.is_due and is_place

    def is_due_at_update(self) -> bool:
        """Whether the end of the update is a boundary."""
        return self.is_due and (self.at_update or not self.has_forwards)

    def has_begun_graph(self) -> bool:
        """Whether this thread has built a part of a graph since the last update: a backward of the
        forward that begins may reach values from before a state is put back."""
        return self._graph_nodes is not None and self._graph_nodes != graph_nodes()

    def made_without_graph(self, nodes: int) -> None:
        """Nodes that an evaluation has made are no part of the step: autocast casts weights with
        a graph of their own, also where none is built.

        Args:
            nodes: how many it made.
        """
        if self._graph_nodes is not None:
            self._graph_nodes += nodes

    def passed(self) -> None:
        """An outermost forward has begun, and was the boundary if one was due here."""
        if self.is_due_here():
            self.is_due = False
        self.has_forwards = True


def _nobody() -> None:
    return None


graph_nodes: Callable[[], int] = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
"""Returns how many nodes of graphs this thread has made so far."""


ClosureArguments = tuple[tuple[Any, ...], dict[str, Any]]


def seen_closure(
    clock: BoundaryClock,
    call_state: CallState,
    optimizer: Optimizer,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    plan: Callable[[int], None],
) -> ClosureArguments:
    """Called before the step; returns its arguments with a closure that plans after its last
    backward; the rest is seen as usual.

    Torch's optimizers run the closure before they read a gradient or a rate. For LBFGS the plan is
    made after the first evaluation: if that leaves no gradient, its step ends. Others that evaluate
    several times (SAM) may have moved the weights in between, so for them the plan is made after as
    many evaluations as there were in the step before, a replayed one included.

    Args:
        optimizer: whose step it is.
        args: of the step.
        kwargs: of the step.
        plan: called after an evaluation, with how often it was called in this step before; must
            not raise.
    """
    closure = args[0] if args else kwargs["closure"]
    due = 1 if isinstance(optimizer, torch.optim.LBFGS) else clock.evaluations.get(optimizer, 1)
    calls = 0

    def evaluate() -> Any:
        nonlocal calls
        depth, call_state.depth = call_state.depth, 0
        try:
            result = closure()
        finally:
            call_state.depth = depth
        calls += 1
        clock.evaluations[optimizer] = calls
        if calls >= due:
            plan(calls - due)
        return result

    return ((evaluate, *args[1:]), kwargs) if args else ((), {**kwargs, "closure": evaluate})
