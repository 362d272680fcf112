"""Calculates one step's forwards and backwards twice, operator by operator.

A result that the machine has calculated wrongly, as it is told. Chooses the steps that are
calculated twice, and tells what was wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from supervisor.codes import Found, Severity, Warned
from supervisor.events.state_events import StateFound
from supervisor.events.step_events import CorruptionFound
from supervisor.records import Alert, Cause, StepRecord
from supervisor.settings import ComputeCheckSettings
from supervisor.training_state.registry import Registry
from supervisor.worker.compute_check.doubled_operators import (
    CheckCounts,
    DoubledOperators,
    OddResult,
    differing,
)
from supervisor.worker.core.boundaries import TimedPart
from supervisor.worker.core.budget import Pace
from supervisor.worker.core.call_state import has_compiled, is_capturing
from supervisor.worker.core.part import Ended
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.corruption.corrupted_tensor import flipped_bit
from supervisor.worker.judging.step_judge import AlertTeller


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongResult:
    """One wrong result of an operator.

    Attributes:
        name: operator and phase, and the parameter that it reads, if one.
        elements: how many were wrong.
        index: of the element that was farthest off.
        value, right: what it was, and what the repetitions give.
        bit: whose flip explains it, if one does.
        in_training: see `OddResult`.
        is_replaced: see `OddResult`.
    """

    name: str
    elements: int
    index: tuple[int, ...]
    value: float
    right: float
    bit: int | None
    in_training: bool
    is_replaced: bool

    def sentence(self) -> str:
        """Says it in words."""
        where = ", ".join(map(str, self.index))
        more = f" (and {self.elements - 1} more elements)" if self.elements > 1 else ""
        flipped = f" (bit {self.bit} flipped)" if self.bit is not None else ""
        whose = "four repetitions give" if self.in_training else "in a repetition; four others give"
        return f"{self.name}[{where}] is {self.value:.6g}{flipped}{more}; {whose} {self.right:.6g}"


def described(odd: OddResult, phase: str, registry: Registry) -> WrongResult:
    """Finds the worst element, and the parameter by its memory."""
    places = differing(odd.wrong, odd.right)
    value, right = _at(odd.wrong, places), _at(odd.right, places)
    read = _parameter(odd, registry)
    return WrongResult(
        name=f"{odd.operator} in the {phase}" + (f", with {read}" if read else ""),
        elements=places.numel(),
        index=_index(odd.wrong.shape, int(torch._C.TensorBase.item(places[0]))),
        value=value,
        right=right,
        bit=flipped_bit(value, right, abs(right) * _LAST_PLACES, odd.wrong.dtype),
        in_training=odd.in_training,
        is_replaced=odd.is_replaced,
    )


_LAST_PLACES = 1e-6
"""A flipped bit leaves all others as they are; a sum of many may be rounded otherwise."""


def _at(tensor: torch.Tensor, places: torch.Tensor) -> float:
    values = torch.view_as_real(tensor) if tensor.dtype.is_complex else tensor
    # Not `.item()`: this read is ours, and is not on the replay log.
    return float(torch._C.TensorBase.item(values.detach().reshape(-1)[places[0]]))


def _index(shape: torch.Size, place: int) -> tuple[int, ...]:
    found = []
    for size in reversed(shape):
        found.append(place % size)
        place //= size
    return tuple(reversed(found))


def _parameter(odd: OddResult, registry: Registry) -> str | None:
    memory = {tensor.untyped_storage().data_ptr() for tensor in odd.inputs if tensor.numel()}
    for model, root in registry.models.items():
        for name, parameter in root.named_parameters():
            if parameter.numel() and parameter.untyped_storage().data_ptr() in memory:
                return f"{model}.{name}" if len(registry.models) > 1 else name
    return None


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

    def start(self, step: int) -> None:
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

    def stop(self) -> tuple[list[WrongResult], float]:
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


class ComputeListener(TimedPart):
    """Off unless `compute_check.enabled`. Several ranks calculate the same step twice, so that none
    waits for another."""

    name = "compute check"

    def __init__(self, context: WorkerContext, check: ComputeCheck, alerts: AlertTeller) -> None:
        super().__init__(context.turns)
        is_experiment, settings = context.is_experiment, context.settings.compute_check
        settings = ComputeCheckSettings() if is_experiment else settings
        share = settings.max_overhead if settings.enabled else 0.0
        self._pace = Pace(share, settings.every_steps if settings.enabled else None)
        self._check = check
        self._alerts = alerts
        self._warn = context.warn
        self._started = time.perf_counter()

    def is_due(self, step: int) -> bool:
        return step >= self._pace.next_step and not self._check.has_ended

    def next_boundary(self, step: int) -> tuple[float, float]:
        is_on = self._check.step >= 0
        return (step + 1 if is_on else self._pace.next_step), float("inf")

    def at_boundary(self, step: int) -> None:
        if self._check.step >= 0:
            self._end_step()
        if self.has_turn(step) and not self._check.has_ended:
            self._check.start(step)
        if self._check.has_ended and self._pace.next_step < float("inf"):
            self._pace.next_step = float("inf")
            self._warn(f"nothing is calculated twice: {self._check.reason}", aloud=True)

    def ends(self, how: Ended) -> None:
        """Writes what was checked, and what it has cost."""
        if self._check.step >= 0:
            self._end_step()
        pace, counts = self._pace, self._check.counts
        if not pace.looks:
            return
        elapsed = time.perf_counter() - self._started
        share = pace.spent_s / elapsed if elapsed > 0 else 0.0
        self._warn.write(
            StateFound(
                found=Found.COMPUTE_CHECK,
                count=counts.calls,
                updates=pace.looks,
                cost_s=pace.spent_s,
                overhead=share,
                detail=(
                    f"{counts.calls} operators of {pace.looks} steps were calculated twice, in "
                    f"{share:.2%} of the time; {counts.rounded} results differed within rounding, "
                    f"{counts.varying} are never the same twice"
                ),
            )
        )

    def _end_step(self) -> None:
        checked = self._check.step
        found, cost_s = self._check.stop()
        self._pace.took(checked, cost_s, time.perf_counter())
        for wrong in found:
            self._tell(checked, wrong)
        if found:
            self._warn(
                f"suspect hardware: results of step {checked} that came out otherwise when they "
                f"were calculated again: {len(found)}; test the device before you trust it",
                aloud=True,
                found=Warned.SUSPECT_HARDWARE,
            )

    def _tell(self, step: int, wrong: WrongResult) -> None:
        alert = Alert(
            detector="compute_check",
            severity=Severity.CRITICAL,
            category="weights",
            kind="wrong_result",
            cause=Cause.OTHER,
            message=wrong.sentence(),
            step=step,
            value=wrong.value,
            threshold=wrong.right,
        )
        self._alerts.tell(StepRecord(step=step), (alert,))
        if not wrong.in_training:
            return
        self._warn.write(
            CorruptionFound(
                step=step,
                tensor=wrong.name,
                elements=wrong.elements,
                value=wrong.value,
                before=wrong.right,
                bound=wrong.right,
                bit=wrong.bit,
                healed="in_place" if wrong.is_replaced else "no",
                index=wrong.index,
                from_step=step,
                rule="compute",
            )
        )
