"""Calculates one step's forwards and backwards twice, operator by operator."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from supervisor.training_state.registry import Registry
from supervisor.worker.compute_check.doubled_operators import (
    CheckCounts,
    DoubledOperators,
    OddResult,
)
from supervisor.worker.compute_check.wrong_result import WrongResult, described
from supervisor.worker.ground.compiled_code import has_compiled
from supervisor.worker.ground.interception_state import is_capturing

Result = TypeVar("Result")

FORWARD, BACKWARD = "forward", "backward"

_OTHER_FORMULAS = ("ProdBackward", "CumprodBackward")
"""Gradients that torch calculates by another formula while a dispatch mode is on, so that they are
rounded otherwise. Which others were tried: docs/design/corruption.md."""


class ComputeCheck:
    """The switch for the steps that are calculated twice; the training's numbers stay the same.

    Args:
        may_replace: see `DoubledOperators`.

    Attributes:
        step: that is calculated twice; -1 for none.
        has_ended: nothing will be checked any more; `reason` says why.
        counts: of all steps.
    """

    def __init__(
        self, registry: Registry, *, may_replace: Callable[[], bool] = lambda: True
    ) -> None:
        self.step = -1
        self.has_ended = False
        self.reason = ""
        self._registry = registry
        self._operators = DoubledOperators(may_replace=may_replace)
        self._found: list[WrongResult] = []
        self._region_s = 0.0
        self._live_s = 0.0

    @property
    def counts(self) -> CheckCounts:
        return self._operators.counts

    def begin(self, step: int) -> None:
        """Called at the boundary in front of `step`, whose parts then go through `run`."""
        if has_compiled():
            self._end("compiled code cannot be calculated operator by operator")
            return
        self._region_s, self._live_s = 0.0, self.counts.live_s
        self.step = step

    def run(self, phase: str, call: Callable[..., Result], *args: Any) -> Result:
        """Called instead of `call`, with its arguments.

        Args:
            phase: `FORWARD` or `BACKWARD`, whose first argument are its roots.
        """
        if is_capturing() or (phase == BACKWARD and _has_other_formula(args[0])):
            return call(*args)
        operators = self._operators
        started = time.perf_counter()
        try:
            with operators:
                return call(*args)
        finally:
            self._region_s += time.perf_counter() - started
            odd, operators.odd = operators.odd, []
            self._found += [self._described(one, phase) for one in odd]

    def end(self) -> tuple[list[WrongResult], float]:
        """Called behind the step; returns what was wrong, and the seconds that all this took."""
        self.step = -1
        found, self._found = self._found, []
        error = self._operators.error
        if error is not None:
            self._end(f"{type(error).__name__}: {error}")
        return found, max(0.0, self._region_s - (self.counts.live_s - self._live_s))

    def _described(self, odd: OddResult, phase: str) -> WrongResult:
        return described(odd, phase, self._registry)

    def _end(self, reason: str) -> None:
        self.has_ended = True
        self.reason = reason


def _has_other_formula(roots: Any) -> bool:
    found = [roots] if isinstance(roots, torch.Tensor) else list(roots)
    nodes = [getattr(root, "grad_fn", None) or getattr(root, "node", None) for root in found]
    seen: set[Any] = set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            if node.name().startswith(_OTHER_FORMULAS):
                return True
            nodes += [following for following, _ in node.next_functions]
    return False
