"""Looks for mistakes while the first updates are made, and tells each kind once."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from supervisor.codes import Cause, Severity
from supervisor.records import Alert, StepRecord
from supervisor.settings import MistakeSettings
from supervisor.training_state.registry import Registry
from supervisor.worker.core.error_barrier import ErrorBarrier
from supervisor.worker.core.progress import RunWarnings
from supervisor.worker.judging.dispatcher import AlertTeller
from supervisor.worker.mistakes.catalogue import KINDS
from supervisor.worker.mistakes.loss_graph import LossGraph, TooLarge
from supervisor.worker.mistakes.mistake import ForwardSeen, Mistake, Proof, SeenSoFar
from supervisor.worker.mistakes.places import script_place

WALKED = frozenset((0, 1, 2, 10, 19))
"""Updates before which the graph is walked."""
LAST = 64
"""Updates that are watched: two in a row of what takes the longest (`RoundedAway`, 40)."""


class MistakeWatch:
    """Called by `Monitor`, which asks `is_on` first. An error switches it off, and nothing else.

    It watches an attempt that begins at the first step: after a resume it is off, and an update
    that was left out is no evidence.
    """

    def __init__(
        self,
        settings: MistakeSettings,
        registry: Registry,
        *,
        world_size: int,
        tells: bool,
        alerts: AlertTeller,
        warn: RunWarnings,
        barrier: ErrorBarrier,
    ) -> None:
        self._kinds: list[Mistake] = [
            kind() for kind in KINDS if kind.kind not in settings.on_purpose
        ]
        self._seen = SeenSoFar(registry=registry, world_size=world_size, made_at=[])
        self._tells = tells
        self._alerts = alerts
        self._warn = warn
        self._part = barrier("mistakes", when_off=self._turn_off)
        self._step = -1
        self._backwards = 0
        self.is_on = settings.enabled and bool(self._kinds)

    def made(self, kind: str, found: Any) -> None:
        """The script has made an optimizer or a scheduler."""
        if self.is_on and kind in ("optimizer", "scheduler"):
            with self._part:
                place = script_place()
                if place is not None:
                    self._seen.made_at.append((kind, weakref.ref(found), place))

    def forward(self, module: Module) -> None:
        with self._part:
            call = ForwardSeen(
                module=module, with_graph=torch.is_grad_enabled(), place=script_place
            )
            self._ask(lambda mistake: mistake.forward(self._seen, call))

    def forward_ended(self) -> None:
        with self._part:
            for mistake in self._kinds:
                mistake.forward_ended()

    def backward(self, roots: Any) -> None:
        with self._part:
            graph = None
            self._backwards += 1
            if self._seen.updates in WALKED and self._backwards <= 4:
                graph = _walk(roots)
            self._ask(lambda mistake: mistake.backward(self._seen, graph))

    def backward_ended(self) -> None:
        with self._part:
            for mistake in self._kinds:
                mistake.backward_ended(self._seen)

    def before_update(self, optimizer: Optimizer) -> None:
        with self._part:
            for mistake in self._kinds:
                mistake.before_update(self._seen, optimizer)

    def updated(self, optimizer: Optimizer, step: int, *, is_lead: bool, is_left_out: bool) -> None:
        """An update was made, or left out; `step`: steps done with it."""
        with self._part:
            seen = self._seen
            if step < self._step:
                self._turn_off()  # rolled back
                return
            if is_left_out or step > self._step + 1 > 0:  # a step whose update a scaler left out
                for mistake in self._kinds:
                    mistake.interrupted()
            self._step = step
            if is_left_out:
                return
            if is_lead:
                seen.updates += 1
                self._backwards = 0
            with torch.no_grad():
                self._ask(lambda each: each.updated(seen, optimizer, is_lead=is_lead))
            if seen.updates >= LAST:
                self._turn_off()

    def continue_at(self) -> None:
        """A resume has arrived: what it would need of the first steps is gone."""
        self._turn_off()

    def _ask(self, look: Callable[[Mistake], Proof | None]) -> None:
        for mistake in list(self._kinds):
            finding = look(mistake)
            if finding is not None:
                self._kinds.remove(mistake)
                if self._tells:
                    self._tell(mistake.kind, finding)

    def _tell(self, kind: str, finding: Proof) -> None:
        step = max(self._step, 0)
        at = f"{finding.where}: " if finding.where else ""
        message = (
            f"{at}{finding.fact}. Mend: {finding.mend}. On purpose: "
            f"--set mistakes.on_purpose=[{kind}]"
        )
        alert = Alert(
            detector="mistakes",
            severity=Severity.HIGH,
            category="mistake",
            kind=kind,
            cause=Cause.OTHER,
            message=message,
            fact=f"{at}{finding.fact}",
            step=step,
            metadata={"where": finding.where, "names": list(finding.names), "mend": finding.mend},
        )
        self._alerts.tell(StepRecord(step=step), (alert,))
        self._warn(f"mistake: {message}", aloud=True)

    def _turn_off(self) -> None:
        for mistake in self._kinds:
            mistake.forward_ended()
        self.is_on = False
        self._kinds = []
        self._seen.made_at.clear()


def _walk(roots: Any) -> LossGraph | None:
    given = (roots,) if isinstance(roots, torch.Tensor) else roots
    if not isinstance(given, (tuple, list)):
        return None
    try:
        return LossGraph([each for each in given if isinstance(each, torch.Tensor)])
    except TooLarge:
        return None
