"""Has each step judged, writes the judgement to the journal, and starts what was decided.

Tells alerts to the journal and the user's handlers, and has the scene of an anomaly saved. What is
forgotten when another training begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from supervisor.codes import ActionOutcome, Cause, Found, Phase
from supervisor.detectors.registry import load_alert_handlers
from supervisor.errors import let_pass
from supervisor.events.state_events import StateFound
from supervisor.events.step_events import ActionEvent, AlertEvent, RiskEvent
from supervisor.ladder.trial_steps import TRIAL_STEP, TrialAnswer
from supervisor.pipeline import Judgement, Pipeline
from supervisor.records import Alert, StepRecord
from supervisor.storage.checkpoints.checkpoint_files import PIPELINE, read_section
from supervisor.storage.journal.journal import AlertLog, SilentAlertLog
from supervisor.storage.run.healing_memory import takes_dead_ranks_place
from supervisor.storage.steps.flight_recorder import FlightRecorder
from supervisor.training_state.snapshot import SnapshotRing
from supervisor.worker.core.part import ALWAYS, Arrived, Ended, Part, SavePoint
from supervisor.worker.core.run_health import MAX_WAITING, Deferral
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.judging.anomaly_scene import AnomalyScene
from supervisor.worker.probes.probes import Probes
from supervisor.worker.treatment.action_runner import ActionRunner
from supervisor.worker.treatment.exact_retry import ExactRetry


class AlertTeller:
    """Called for each judged step that has alerts.

    Attributes:
        journal: for what all ranks find alike.
        handlers: the user's alert handlers; one that raises is dropped.
    """

    def __init__(self, context: WorkerContext, probes: Probes, scene: AnomalyScene) -> None:
        is_first_rank = context.place.is_first_rank  # it tells for all ranks
        names = context.settings.alert_handlers if is_first_rank else []
        self.handlers: list[Callable[[Alert], None]] = load_alert_handlers(names)
        self.journal = context.group_journal
        self._log = AlertLog(context.rundir.alerts) if is_first_rank else SilentAlertLog()
        self._probes = probes
        self._scene = scene
        self._scene_part = context.breakers("scene of an anomaly")
        self._progress = context.progress
        self._warn = context.warn

    def tell(self, record: StepRecord, alerts: tuple[Alert, ...]) -> None:
        """Tells the alerts of one step, before its update where it is judged in time."""
        anomalous = False
        for alert in alerts:
            for handler in list(self.handlers):
                try:
                    handler(alert)
                except BaseException as error:  # the user's own code
                    if not isinstance(error, Exception):  # it ends the training by `sys.exit`
                        let_pass(error)
                        raise
                    self.handlers.remove(handler)
                    self._warn(f"alert handler {handler!r} raised {error!r}: switched off")
            if not self.journal.write(_event(alert, record.step, self._probes.places_of(alert))):
                continue
            self._log.write(alert)
            anomalous = anomalous or alert.category in ("loss", "gradient")
        if anomalous and self._scene_part.is_on:
            with self._scene_part:
                self._scene.save(record, alerts, self._progress.last_batch, self.journal)


def _event(alert: Alert, step: int, places: Sequence[Mapping[str, Any]]) -> AlertEvent:
    return AlertEvent(
        step=step,
        detector=alert.detector,
        severity=alert.severity,
        category=alert.category,
        cause=alert.cause,
        message=alert.message,
        value=alert.value,
        threshold=alert.threshold,
        metadata=alert.metadata,
        alert_kind=alert.kind,
        subject=alert.subject,
        fact=alert.fact,
        places=tuple(places),
    )


def _nothing() -> None:
    """No step's numbers are on their way."""


GOING_BACK = frozenset({"rollback", "back_to_start", "restart"})


class StepJudge(Part):
    """Takes a `StepRecord` from its judgement to its treatment.

    The pipeline (detectors, predictor, ladder) decides, the `ActionRunner` does it: at once what
    concerns this update alone, and at the next boundary, in `at_boundary`, what needs a whole
    state. The runner asks the boundary's schedule for that boundary.

    Args:
        recorder: gets the risk, in each step's row.
        retry: may put something else in the place of a decision.

    Attributes:
        calm: tells which steps are calm, so that their judgement may wait.
        waiting: those that wait, with their rows in the flight recorder, oldest first.
        take_in: has the last step judged if its numbers have not come from a device yet.
        foresees: the guard takes in the norms of steps that wait: its limit is asked for.
    """

    name = "actions"

    def __init__(
        self,
        context: WorkerContext,
        pipeline: Pipeline,
        alerts: AlertTeller,
        runner: ActionRunner,
        recorder: FlightRecorder,
        retry: ExactRetry,
    ) -> None:
        self.calm = Deferral()
        self.waiting: list[tuple[StepRecord, int]] = []
        self.take_in: Callable[[], None] = _nothing
        self.foresees = False
        self._agreement = runner.agreement
        self._pipeline = pipeline
        self._journal = alerts.journal
        self._alerts = alerts
        self._runner = runner
        self._recorder = recorder
        self._health = context.health
        self._retry = retry
        self._warn = context.warn
        self._remembering = context.breakers("memory of the pipeline")
        self._was_warning = False
        self._was_alarm = False

    def judge(self, record: StepRecord, row: int, *, is_in_time: bool = True) -> bool:
        """Feeds one step to the pipeline and starts what it decides; calm steps may wait.

        Args:
            record: the step, as this rank has seen it.
            row: its row in the flight recorder, where the risk is noted.
            is_in_time: its update has not been made yet, so it can still be left out.

        Returns:
            Whether its update is to be left out.
        """
        agreement = self._agreement
        group = record if agreement.is_alone else agreement.group_record(record) or record
        waiting = self.waiting
        waiting.append((group, row))
        if self.calm.is_calm(group) and len(waiting) < MAX_WAITING:
            if not self.foresees:
                return False
            if not (group.announced or group.begins_training):
                self._pipeline.ladder.foresee(group)
                return False
        return self._judge_all(last_is_now=is_in_time)

    def foresee(self) -> None:
        """From here on the guard's limit is asked for before each step."""
        if not self.foresees:
            self._judge_all()
            self.foresees = True

    def judge_waiting(self) -> None:
        """Judges all steps that wait, oldest first."""
        self.take_in()
        self._judge_all()

    def _judge_all(self, *, last_is_now: bool = False) -> bool:
        """The same, without a step whose numbers have not come yet.

        Args:
            last_is_now: the last of them is the step under way, whose update can still be left out.

        Returns:
            Whether it is to be left out.
        """
        waiting, self.waiting = self.waiting, []
        if not waiting:
            return False
        judgements = self._pipeline.update_all([record for record, _ in waiting])
        now = waiting[-1][0].step if last_is_now else -1
        skips = False
        for judgement, (_, row) in zip(judgements, waiting, strict=True):
            left_out = self._act_on(judgement, is_now=judgement.record.step == now)
            skips = skips or left_out
            if not judgement.record.has_nonfinite_loss:
                self._health.bad_losses = 0
            elif not left_out:
                self._health.bad_losses += 1
            self._recorder.mark_risk((row,), judgement.risk.probability)
        self.calm.settle()
        return skips

    def begin_another_training(self) -> None:
        """What comes next has nothing to do with the steps so far."""
        self.judge_waiting()
        self.calm = Deferral()
        self._health.recent_grad_norms.clear()

    def at_boundary(self, step: int) -> None:
        if self._runner.pending:
            self.judge_waiting()
            self._runner.run_pending(step)

    def save(self, point: SavePoint) -> None:
        point.note({"risk": self._health.risk})
        point.sections[PIPELINE] = self._pipeline.state_dict()

    def after_state(self, arrived: Arrived) -> list[str]:
        """The pipeline remembers what it knew; without that its windows begin anew."""
        with self._remembering:
            remembered = read_section(arrived.path, PIPELINE)
            if remembered is not None:
                self._pipeline.load_state_dict(remembered)
                if not takes_dead_ranks_place():  # the other ranks' pipelines go on
                    self._pipeline.resumed(arrived.step, arrived.path.name)
        return []

    def ends(self, how: Ended) -> None:
        self.judge_waiting()

    def next_boundary(self, step: int) -> tuple[float, float]:
        return ALWAYS if self._runner.pending else super().next_boundary(step)

    def _act_on(self, judgement: Judgement, *, is_now: bool) -> bool:
        """Reports a judgement and starts its decision; returns whether the update is left out."""
        record, risk, health = judgement.record, judgement.risk, self._health
        self.calm.judged(record, trouble=risk.warning or risk.alarm, noticed=bool(judgement.alerts))
        if math.isfinite(record.grad_norm):
            health.recent_grad_norms.append(record.grad_norm)
        is_news = judgement.decision or judgement.outcomes or health.risk or self._was_warning
        if judgement.is_calm and not is_news:
            return False
        for error in judgement.errors:
            self._warn(f"detector {error}")
        is_changed = judgement.trial is TrialAnswer.CHANGED
        told = (
            (Found.ANOTHER_LEVEL, judgement.needless_rollback),
            (Found.ANOTHER_LEVEL if is_changed else Found.TRIAL_STEP, judgement.trial_says),
            (Found.OTHER_DATA, judgement.other_data),
            (Found.REINFORCEMENT, judgement.reinforcement),
            (Found.RATE_TEST, judgement.rate_test),
            (Found.SCRIPT_CHANGE, judgement.script_change),
        )
        for what, why in told:
            if why:
                self._journal.write(StateFound(step=record.step, found=what, detail=why))
        if judgement.alerts:
            self._alerts.tell(record, judgement.alerts)
        self._tell_risk(judgement)
        self._tell_outcomes(judgement)
        decision = judgement.decision
        if decision is None:
            return False
        if not GOING_BACK.isdisjoint(decision.actions):
            health.last_trouble_step = record.step  # what was saved since the onset may be sick
        decision = self._retry.instead(decision)
        if not is_now:
            kept = tuple(name for name in decision.actions if name != "skip_update")
            decision = replace(decision, actions=kept)
        self._agreement.decided(decision.step, decision.actions, decision.undo)
        self._pipeline.ladder.trials.is_pending |= TRIAL_STEP in decision.actions
        return self._runner.start(decision)

    def _tell_outcomes(self, judgement: Judgement) -> None:
        for found in judgement.outcomes:
            self._journal.write(
                ActionEvent(
                    step=judgement.record.step,
                    name=found.name,
                    rung=found.rung,
                    cause=Cause(found.cause),
                    cost_s=0.0,
                    outcome=ActionOutcome(found.outcome),
                    applied_at=found.step,
                    phase=Phase.VERIFIED,
                )
            )

    def _tell_risk(self, judgement: Judgement) -> None:
        risk = judgement.risk
        self._health.risk = risk.probability
        rising = (risk.warning and not self._was_warning) or (risk.alarm and not self._was_alarm)
        if rising:
            self._journal.write(
                RiskEvent(
                    step=risk.step,
                    probability=risk.probability,
                    calibrated=round(risk.calibrated, 3),
                    reason=risk.reason,
                    cause=risk.cause,
                    contributions=dict(risk.contributions),
                    alarm=risk.alarm,
                    onset_step=risk.onset_step,
                    subject=risk.subject,
                )
            )
        if risk.alarm:
            self._health.last_trouble_step = risk.step
        self._was_warning, self._was_alarm = risk.warning, risk.alarm


TOLD = 20
"""A meta-learner begins another training in each iteration: only so many are reported."""


class NewTrainings:
    """Forgets what belongs to the last training when another optimizer takes over."""

    def __init__(
        self, context: WorkerContext, step_judge: StepJudge, snapshots: SnapshotRing
    ) -> None:
        self._step_judge = step_judge
        self._snapshots = snapshots
        self._controls = context.controls
        self._journal = context.group_journal
        self._count = 1

    def starts(self, step: int, *, has_other_weights: bool) -> None:
        """Another optimizer leads from `step` on; snapshots hold the state of the one before."""
        self._snapshots.clear()
        if not has_other_weights:
            return
        self._step_judge.begin_another_training()
        self._controls.lr_share = 1.0
        self._count += 1
        if self._count <= TOLD:
            self._journal.write(StateFound(step=step, found=Found.ANOTHER_TRAINING))
