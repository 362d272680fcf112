"""Has each step judged, writes the judgement to the journal, and starts what was decided."""

from __future__ import annotations

import math
from dataclasses import replace

from supervisor.codes import ActionOutcome, Cause, Found, Phase
from supervisor.events.state_events import StateFound
from supervisor.events.step_events import ActionEvent, RiskEvent
from supervisor.ladder.trial_steps import TrialAnswer
from supervisor.pipeline import Judgement, Pipeline
from supervisor.records import StepRecord
from supervisor.storage.checkpoints.section_files import PIPELINE, read_section
from supervisor.storage.steps.flight_recorder import FlightRecorder
from supervisor.worker.core.part import ALWAYS, Arrived, Ended, Part, SavePoint
from supervisor.worker.ground.deferral import MAX_WAITING, Deferral
from supervisor.worker.ground.error_barrier import ErrorBarrier
from supervisor.worker.ground.run_health import RunHealth
from supervisor.worker.ground.run_warnings import RunWarnings
from supervisor.worker.treatment.action_runner import ActionRunner
from supervisor.worker.treatment.alert_teller import AlertTeller
from supervisor.worker.treatment.exact_retry import ExactRetry

GOING_BACK = frozenset({"rollback", "back_to_start", "restart"})


class Dispatcher(Part):
    """Takes a `StepRecord` from its judgement to its treatment.

    The pipeline (detectors, predictor, ladder) decides, the `ActionRunner` does it: at once what
    concerns this update alone, and at the next boundary, in `at_boundary`, what needs a whole
    state. The runner asks the boundary's schedule for that boundary.

    Args:
        recorder: gets the risk, in each step's row.
        health: filled in here.
        retry: may put something else in the place of a decision.

    Attributes:
        calm: tells which steps are calm, so that their judgement may wait.
        waiting: those that wait, with their rows in the flight recorder, oldest first.
    """

    name = "actions"

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        alerts: AlertTeller,
        runner: ActionRunner,
        recorder: FlightRecorder,
        health: RunHealth,
        retry: ExactRetry,
        warn: RunWarnings,
        barrier: ErrorBarrier,
    ) -> None:
        self.calm = Deferral()
        self.waiting: list[tuple[StepRecord, int]] = []
        self._agreement = runner.agreement
        self._pipeline = pipeline
        self._journal = alerts.journal
        self._alerts = alerts
        self._runner = runner
        self._recorder = recorder
        self._health = health
        self._retry = retry
        self._warn = warn
        self._remembering = barrier("memory of the pipeline")
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
        group = self._agreement.group_record(record) or record
        waiting = self.waiting
        waiting.append((group, row))
        if self.calm.is_calm(group) and len(waiting) < MAX_WAITING:
            return False
        return self.judge_waiting(last_is_now=is_in_time)

    def judge_waiting(self, *, last_is_now: bool = False) -> bool:
        """Judges all steps that wait, oldest first.

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
        if judgement.needless_rollback:
            why = judgement.needless_rollback
            found = StateFound(step=record.step, found=Found.ANOTHER_LEVEL, detail=why)
            self._journal.write(found)
        if judgement.trial is not None:
            changed = judgement.trial is TrialAnswer.CHANGED
            what, why = Found.ANOTHER_LEVEL if changed else Found.TRIAL_STEP, judgement.trial_says
            self._journal.write(StateFound(step=record.step, found=what, detail=why))
        if judgement.other_data:
            why = judgement.other_data
            self._journal.write(StateFound(step=record.step, found=Found.OTHER_DATA, detail=why))
        if judgement.reinforcement:
            why = judgement.reinforcement
            self._journal.write(StateFound(step=record.step, found=Found.REINFORCEMENT, detail=why))
        if judgement.rate_test:
            why = judgement.rate_test
            self._journal.write(StateFound(step=record.step, found=Found.RATE_TEST, detail=why))
        if judgement.script_change:
            why = judgement.script_change
            self._journal.write(StateFound(step=record.step, found=Found.SCRIPT_CHANGE, detail=why))
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
