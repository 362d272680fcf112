"""Judges each step, writes down what was thought and done, and applies the actions."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from supervisor.actions.base import Action, ActionContext, carry_out
from supervisor.pipeline import Judgement, Pipeline
from supervisor.records import ActionResult, Alert, Cause, Decision, StepRecord, plain
from supervisor.storage.journal.journal import AlertLog, Journal
from supervisor.worker.ground.deferral import MAX_WAITING, Deferral

QUIET_STEPS = 20
"""The same alert of the same detector is told at most once in so many steps."""

GOING_BACK = frozenset({"rollback", "back_to_start", "restart"})

TROUBLE_STEPS = 20
"""After an alarm the state counts as doubtful for the predictor's horizon."""


@dataclass(frozen=True, slots=True)
class Pending:
    """An action that waits for the boundary."""

    action: Action
    decision: Decision
    undo: bool = False


class Dispatcher:
    """From `StepRecord` to treatment; owned by the worker.

    Args:
        make_context: gives the `ActionContext` for a decision, fresh each time.
        on_anomaly: called with (record, alerts) when an alert of the loss or gradient came.
        note_risk: called with (rows, risk) when steps were judged.
        before_first_update: called when step 0 is about to be judged.
        ask_for_boundary: called when an action waits for the next boundary.
        handlers: the user's alert handlers; one that raises is dropped.

    Attributes:
        places_of: gives the tensors or modules that an alert is about, for its line in the journal.
        calm: which steps may wait for their judgement.
        waiting: these, with their rows in the flight recorder, oldest first.
        last_batch: the newest batch of a loader, for a capture of an anomalous step.
    """

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        journal: Journal,
        alert_log: AlertLog,
        actions: Mapping[str, Action],
        make_context: Callable[[Decision], ActionContext],
        on_anomaly: Callable[[StepRecord, tuple[Alert, ...]], None],
        note_risk: Callable[[Sequence[int], float], None],
        before_first_update: Callable[[], None],
        ask_for_boundary: Callable[[], None],
        warn: Callable[[str], None],
    ) -> None:
        self.pipeline = pipeline
        self._ask_for_boundary = ask_for_boundary
        self._note_risk = note_risk
        self._before_first_update = before_first_update
        self.calm = Deferral()
        self._boundary_step = 0
        self.waiting: list[tuple[StepRecord, int]] = []
        self.handlers: list[Callable[[Alert], None]] = []
        self.places_of: Callable[[Alert], list[dict[str, Any]]] = lambda alert: []
        self.pending: list[Pending] = []
        self.risk = 0.0
        self.wants_checkpoint = ""
        self.last_trouble_step = -1
        self.recent_grad_norms: deque[float] = deque(maxlen=1000)
        self.last_batch: Any = None
        self._journal = journal
        self._alert_log = alert_log
        self.actions = actions
        self._make_context = make_context
        self._on_anomaly = on_anomaly
        self._warn = warn
        self._was_warning = False
        self._was_alarm = False
        self._told_dry: dict[tuple[str, ...], int] = {}

    def judge(self, record: StepRecord, row: int, *, is_in_time: bool = True) -> bool:
        """Feeds one step to the pipeline and starts what it decides; calm steps may wait.

        Args:
            record: the step.
            row: its row in the flight recorder, where the risk is noted.
            is_in_time: its update was not applied yet, so it can still be left out.

        Returns:
            Whether its update is to be left out.
        """
        waiting = self.waiting
        waiting.append((record, row))
        if self.calm.is_calm(record) and len(waiting) < MAX_WAITING:
            return False
        return self.judge_waiting(last_is_now=is_in_time)

    def judge_waiting(self, *, last_is_now: bool = False) -> bool:
        """Judges the steps that waited, in their order, so that nothing is left open.

        Args:
            last_is_now: the last of them is the step under way, whose update can still be left out.

        Returns:
            Whether it is to be left out.
        """
        waiting, self.waiting = self.waiting, []
        if not waiting:
            return False
        if waiting[0][0].step == 0:
            self._before_first_update()
        judgements = self.pipeline.update_all([record for record, _ in waiting])
        now = waiting[-1][0].step if last_is_now else -1
        skips = False
        for judgement, (_, row) in zip(judgements, waiting, strict=True):
            skips = self._take_in(judgement, is_now=judgement.record.step == now)
            self._note_risk((row,), judgement.risk.probability)
        self.calm.settle()
        return skips

    def _take_in(self, judgement: Judgement, *, is_now: bool) -> bool:
        """Tells and does what was thought of a step; returns whether its update is left out."""
        record, risk = judgement.record, judgement.risk
        self.calm.judged(record, trouble=risk.warning or risk.alarm, noticed=bool(judgement.alerts))
        if math.isfinite(record.grad_norm):
            self.recent_grad_norms.append(record.grad_norm)
        is_news = judgement.decision or judgement.outcomes or self.risk or self._was_warning
        if judgement.is_quiet and not is_news:
            return False
        for error in judgement.errors:
            self._warn(f"detector {error}")
        if judgement.acquittal:
            self._journal.write(
                "state_found",
                step=record.step,
                found="another level",
                detail=judgement.acquittal,
            )
        if judgement.alerts:
            self._tell_alerts(record, judgement.alerts)
        self._tell_risk(judgement)
        for found in judgement.outcomes:
            self._journal.write(
                "action",
                step=record.step,
                name=found.name,
                rung=found.rung,
                cause=found.cause,
                cost_s=0.0,
                outcome=found.outcome,
                applied_at=found.step,
                phase="verified",
            )
        decision = judgement.decision
        if decision is not None and not GOING_BACK.isdisjoint(decision.actions):
            self.last_trouble_step = record.step  # what was saved since the onset may be sick
        if decision is not None and not is_now:
            kept = tuple(name for name in decision.actions if name != "skip_update")
            decision = replace(decision, actions=kept)
        return decision is not None and self._carry_out(decision)

    def begin_another_training(self) -> None:
        """What comes next has nothing to do with the steps so far."""
        self.judge_waiting()
        self.calm = Deferral()
        self.recent_grad_norms.clear()

    def in_trouble(self, step: int) -> bool:
        """Whether the state of this step may be sick: an alarm is on, or was a moment ago."""
        return self.last_trouble_step >= 0 and step - self.last_trouble_step <= TROUBLE_STEPS

    def at_boundary(self, step: int) -> None:
        """Applies what waited for a whole state. Called at the boundary after `step` steps."""
        self._boundary_step = step
        self.judge_waiting()
        while self.pending:
            waiting = self.pending.pop(0)
            self._run(waiting.action, waiting.decision, undo=waiting.undo)

    def apply_now(self, action: Action, decision: Decision) -> None:
        """Carries out what was ordered, not decided. Called at a boundary."""
        self._run(action, decision, undo=False)

    def leaves_out_follower(self, step: int, norm: float) -> bool:
        """Decides about the update of an optimizer behind the lead, whose gradient is not finite.

        The pipeline judges the lead's part of a step alone, so the policy is asked here.

        Args:
            step: under way.
            norm: of the gradient.
        """
        policy = self.pipeline.policy
        if not policy.guard.skip_nonfinite:
            return False
        decision = Decision(
            step=step,
            actions=("skip_update",),
            cause=Cause.NONFINITE,
            reason=f"the gradient norm of a second optimizer is {norm:g}",
            risk=self.risk,
            dry_run=policy.observe_only,
        )
        if decision.dry_run:
            self._tell_dry(decision)
            return False
        result = ActionResult(
            name="skip_update",
            applied=True,
            detail=f"the second optimizer's update of step {step} is left out",
        )
        self._journal.write("action", step=step, **_action_fields(result, decision))
        return True

    # --- telling -----------------------------------------------------------------------------

    def _tell_alerts(self, record: StepRecord, alerts: tuple[Alert, ...]) -> None:
        anomalous = False
        for alert in alerts:
            for handler in list(self.handlers):
                try:
                    handler(alert)
                except Exception as error:  # the user's own code
                    self.handlers.remove(handler)
                    self._warn(f"alert handler {handler!r} raised {error!r}: switched off")
            places = self.places_of(alert)
            more = {"places": places} if places else {}
            fields = _alert_fields(alert)
            if not self._journal.write("alert", step=record.step, **fields, **more):
                continue
            self._alert_log.write(alert)
            anomalous = anomalous or alert.category in ("loss", "gradient")
        if anomalous:
            self._on_anomaly(record, alerts)

    def _tell_risk(self, judgement: Judgement) -> None:
        risk = judgement.risk
        self.risk = risk.probability
        rising = (risk.warning and not self._was_warning) or (risk.alarm and not self._was_alarm)
        if rising:
            self._journal.write(
                "risk",
                step=risk.step,
                probability=risk.probability,
                calibrated=round(risk.calibrated, 3),
                reason=risk.reason,
                cause=risk.cause.value,
                contributions=dict(risk.contributions),
                alarm=risk.alarm,
                onset_step=risk.onset_step,
            )
        if risk.alarm:
            self.last_trouble_step = risk.step
        self._was_warning, self._was_alarm = risk.warning, risk.alarm

    # --- acting ------------------------------------------------------------------------------

    def _carry_out(self, decision: Decision) -> bool:
        """Starts all actions of a decision; returns whether one leaves the update out."""
        if decision.dry_run:
            self._tell_dry(decision)
            return False
        for name in decision.undo:
            self._dispatch(name, decision, undo=True)
        skips = False
        for name in decision.actions:
            skips = self._dispatch(name, decision, undo=False) or skips
        return skips

    def _tell_dry(self, decision: Decision) -> None:
        key = (*decision.actions, "/", *decision.undo)
        if decision.step - self._told_dry.get(key, -QUIET_STEPS) < QUIET_STEPS:
            return
        self._told_dry[key] = decision.step
        for name in decision.actions:
            self._journal.write(
                "action",
                step=decision.step,
                name=name,
                rung=decision.rung,
                cause=decision.cause.value,
                cost_s=0.0,
                outcome="would_have",
                applied=False,
                reason=decision.reason,
                source=decision.source,
                risk=decision.risk,
            )

    def _dispatch(self, name: str, decision: Decision, *, undo: bool) -> bool:
        action = self.actions.get(name)
        if action is None:
            self._warn(f"policy: unknown action '{name}': left out")
            return False
        if action.moment == "boundary":
            self.pending.append(Pending(action, decision, undo))
            self._ask_for_boundary()
            return False
        return self._run(action, decision, undo=undo).skips_update

    def _run(self, action: Action, decision: Decision, *, undo: bool) -> ActionResult:
        context = self._make_context(decision)
        result = carry_out(action, context, undo=undo)
        if undo:
            self._journal.write(
                "action_undone",
                step=decision.step,
                name=action.name,
                cause=decision.cause.value,
                detail=result.detail,
                reason=decision.reason,
            )
            return result
        self.pipeline.settle(result)
        self._journal.write("action", step=decision.step, **_action_fields(result, decision))
        if result.applied and result.to_step >= 0:
            self._journal.write(
                "rollback",
                step=decision.step,
                from_step=decision.step,
                to_step=result.to_step,
                cause=decision.cause.value,
                name=result.name,
                before_step=self._boundary_step,
            )
        return result


def _alert_fields(alert: Alert) -> dict[str, Any]:
    fields = alert.to_dict()
    del fields["step"]
    fields["alert_kind"] = fields.pop("kind")
    return fields


def _action_fields(result: ActionResult, decision: Decision) -> dict[str, Any]:
    return {
        "name": result.name,
        "rung": decision.rung,
        "cause": decision.cause.value,
        "cost_s": result.cost_s,
        "outcome": "applied" if result.applied else "refused",
        "applied": result.applied,
        "detail": result.detail,
        "reason": decision.reason,
        "source": decision.source,
        "risk": decision.risk,
        "fields": plain(result.fields),
    }
