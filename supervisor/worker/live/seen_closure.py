"""The closure of an optimizer's step, with a point after its backward at which the step is
judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from supervisor.by_identity import ByIdentity
from supervisor.worker.ground.interception_state import InterceptionState

ClosureArguments = tuple[tuple[Any, ...], dict[str, Any]]


class SeenClosures:
    """Wraps closures so that the plan is made after their last backward; the rest is seen as usual.

    Torch's optimizers run the closure before they read a gradient or a rate. For LBFGS the plan is
    made after the first evaluation: if that leaves no gradient, its step ends. Others that evaluate
    several times (SAM) may have moved the weights in between, so for them the plan is made after as
    many evaluations as there were in the step before.
    """

    def __init__(self, interception: InterceptionState) -> None:
        self._interception = interception
        self._calls: ByIdentity[Optimizer, int] = ByIdentity()

    def wrap(
        self,
        optimizer: Optimizer,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        plan: Callable[[int], None],
    ) -> ClosureArguments:
        """Called before the step; returns its arguments with the closure replaced.

        Args:
            optimizer: whose step it is.
            args: of the step.
            kwargs: of the step.
            plan: called after an evaluation, with how often it was called in this step before; must
                not raise.
        """
        closure = args[0] if args else kwargs["closure"]
        due = 1 if isinstance(optimizer, torch.optim.LBFGS) else self._calls.get(optimizer, 1)
        interception, calls = self._interception, 0

        def evaluate() -> Any:
            nonlocal calls
            depth, interception.depth = interception.depth, 0
            try:
                result = closure()
            finally:
                interception.depth = depth
            calls += 1
            self._calls[optimizer] = calls
            if calls >= due:
                plan(calls - due)
            return result

        return ((evaluate, *args[1:]), kwargs) if args else ((), {**kwargs, "closure": evaluate})
