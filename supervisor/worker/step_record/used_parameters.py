"""Which parameters have gradients, without a look at all those that never have any."""

from __future__ import annotations

import operator

import torch

from supervisor.training_state.gradients import first_gradient
from supervisor.worker.core.boundary_clock import graph_nodes

MANY = 1000
"""Parameters without a gradient beyond which it pays: a look takes 0.3 us."""
ALIKE = 64
"""Steps in a row in which the same parameters had gradients, before the others are looked at in
turns, a part in each step."""


class UsedParameters:
    """Of one optimizer after another.

    The others are all looked at where the number of operations recorded for the backward is another
    than in the step before, as it is when a model takes another way. So a gradient that comes where
    none was before is missed for at most `ALIKE` steps, and only if it takes no other operation.
    """

    def __init__(self) -> None:
        self._of: list[torch.Tensor] = []
        self._used: list[torch.Tensor] = []
        self._others: list[torch.Tensor] = []
        self._nodes = 0
        self._made = 0
        self._alike = 0

    def of(self, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
        """Returns those that have gradients, or more, in their order.

        Args:
            parameters: of the optimizer that is about to step; the same list at each call.
        """
        if len(parameters) <= MANY:
            return parameters
        made, before = graph_nodes(), self._nodes
        self._nodes, nodes = made, made - before
        is_known = parameters is self._of and nodes == self._made
        self._made = nodes
        if is_known and self._alike >= ALIKE:
            self._alike += 1
            if first_gradient(self._others[self._alike % ALIKE :: ALIKE]) is None:
                return self._used
        used = [p for p in parameters if p.grad is not None]
        if len(parameters) - len(used) <= MANY:
            self._of = []
            return parameters
        if is_known and len(used) == len(self._used) and all(map(operator.is_, used, self._used)):
            self._alike += 1
        else:
            self._alike = 0
            ids = set(map(id, used))
            self._others = [p for p in parameters if id(p) not in ids]
        self._of, self._used = parameters, used
        return used
