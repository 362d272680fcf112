"""The escalation ladder: from risk to what is to be done at this step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from supervisor.codes import Subject
from supervisor.ladder.decisions import GUARD_RUNG, Budget, Decisions
from supervisor.ladder.going_back import GoingBack
from supervisor.ladder.guard import LEFT, Guard, GuardVerdict, NormLimit, is_nonfinite
from supervisor.ladder.initial_divergence import LAST_STEP, InitialDivergence
from supervisor.ladder.rung_choice import COURSE, RungChoice
from supervisor.ladder.rungs import FREE, Rungs
from supervisor.ladder.treatments import TreatmentOutcome, Treatments
from supervisor.ladder.trial_steps import TRIAL_STEP, TrialAnswer, TrialSteps
from supervisor.records import ActionResult, Alert, Cause, CrashRisk, Decision, StepRecord
from supervisor.settings import PolicySettings

HOT_START = "hot_start"
"""The detector whose alert asks for another start, where a policy wants it."""

LIMIT_TOLERANCE = 1.05
"""A limit on the learning rate is not needed any more when the script's own lies this close."""


class EscalationLadder:
    """Chooses what is done at a step: the guard first, then going back, then the policy's rungs.

    Attributes:
        trials: whether a risen loss is decided by an experiment.
        outcomes: of the last step.
        waits_for_evaluation: it is not known yet whether the last rollback was needless: what the
            guard would go back for is only left out.

    Each treatment is verified after `verify_steps` and taken back after `healthy_steps` of low
    risk, the latest first (docs/prediction.md, "The ladder").
    """

    def __init__(self, policy: PolicySettings) -> None:
        self.policy = policy
        self._guard = Guard(policy.guard)
        self._treatments = Treatments(policy)
        self._budget = Budget(policy.budget)
        self._initial = InitialDivergence()
        self.trials = TrialSteps()
        rungs = Rungs(policy)
        self._decisions = Decisions(policy, self._guard, self._treatments, self._budget)
        self._going_back = GoingBack(
            policy, self._decisions, self._treatments, self._budget, rungs, self._guard
        )
        self._choice = RungChoice(
            policy, self._decisions, self._going_back, self._guard, rungs, self._budget
        )
        self.outcomes: tuple[TreatmentOutcome, ...] = ()
        self.waits_for_evaluation = False
        self._was_needless = False

    @property
    def active(self) -> tuple[str, ...]:
        """Treatments in force, oldest first."""
        return tuple(self._treatments.active)

    @property
    def has_spent_its_budget(self) -> bool:
        """Whether it has treated as often as it may, so that it would not treat any more."""
        return self._budget.total > 0 and self._budget.is_spent and not self.policy.observe_only

    @property
    def waits_for_level(self) -> bool:
        """See `Treatments`."""
        return self._treatments.waits_for_level

    def foresee(self, record: StepRecord) -> None:
        """A calm step is judged later: see `Guard.foresee`."""
        self._guard.foresee(record)

    def norm_limit(self, *, clips_at: float, has_moving_objective: bool) -> NormLimit | None:
        """From which gradient norm on `decide` leaves the next update out, beside what is not
        finite; None where that cannot be known before the step. Arguments: see the guard's."""
        back, trials = self._going_back, self.trials
        is_in_trouble = back.stopped or back.resigned or self._waits or self._treatments.active
        if is_in_trouble or trials.has_left or trials.takes_over:
            return None
        if not self.policy.guard.skip_nonfinite:
            return None
        return self._guard.norm_limit(clips_at=clips_at, has_moving_objective=has_moving_objective)

    def decide(
        self,
        record: StepRecord,
        alerts: Sequence[Alert],
        risk: CrashRisk,
        advice: Mapping[str, str] = MappingProxyType({}),
    ) -> Decision | None:
        """What is to be done at this step, before its update; None for nothing.

        Args:
            record, alerts, risk: the step, and what is thought of it.
            advice: treatments that helped in earlier cases like this one, the best first, each with
                the name of a case. The first that the policy has for this cause and that was not
                advised in this episode yet is tried before anything else, if
                `PolicySettings.case_library` is on.
        """
        undo: tuple[str, ...] = ()
        reason = "another training has begun"
        if self._was_needless:
            undo, reason = self._end_needless_treatment(), "the weights were not to blame"
        if record.begins_training:
            undo = (*undo, *self._begin_another_training())
        if record.announced:
            self._forget_levels(record)
        decision = self._next_treatment(record, alerts, risk, advice)
        if not undo:
            return decision
        if decision is None:
            return self._decisions.take_back(record, risk, undo, reason)
        return replace(decision, undo=(*undo, *decision.undo))

    def trial_answered(
        self, record: StepRecord, risk: CrashRisk, answer: TrialAnswer, why: str
    ) -> Decision | None:
        """What follows from a trial step; None for what is decided about any step.

        Args:
            record, risk: the step, and what is thought of it.
            answer, why: what it says, and in which figures.
        """
        self.outcomes = ()
        onset = self.trials.onset
        if not self.trials.answered(answer) or self._going_back.stopped:
            return None
        if answer is TrialAnswer.CHANGED:
            self.rollback_was_needless()
        if answer is not TrialAnswer.STATE:
            return None
        cause, subject = Cause.DIVERGENCE, Subject.LOSS
        risk = replace(risk, cause=cause, reason=why, subject=subject, onset_step=onset)
        return self._going_back.roll_back(record, risk, GUARD_RUNG)

    def rollback_was_needless(self) -> None:
        """The weights were not to blame (`RollbackEvaluation`); said before `decide`."""
        self._was_needless = True

    def resign(self) -> None:
        """Nothing has helped: as long as all values are finite, nothing more is treated."""
        self._going_back.resigned = True

    def found_corruption(self, since_step: int) -> None:
        """The state was damaged after this step, and is healed: no treatment since has helped."""
        self._treatments.were_not_enough(since_step)

    def settle(self, result: ActionResult) -> None:
        """Takes in what an action did. One that did not apply leaves the way free for the next."""
        if result.name == TRIAL_STEP:
            self.trials.is_pending = False
        if result.applied:
            self.trials.is_next |= result.name == TRIAL_STEP
            if result.to_step >= 0:
                self._guard.forgive()
                self._treatments.restart_watch()
            if result.name == "back_to_start":
                self._guard.reset()
                self._initial.forgive()
            return
        if result.name == TRIAL_STEP:
            self.trials.could_not_be_made()
        self._treatments.failed_to_apply(result.name)
        self._going_back.settle(result)
        if result.name not in FREE and result.name != "skip_update":
            self._decisions.refused(result.name)

    def _next_treatment(
        self,
        record: StepRecord,
        alerts: Sequence[Alert],
        risk: CrashRisk,
        advice: Mapping[str, str],
    ) -> Decision | None:
        self._decisions.tick += 1
        self._budget.observe(record)
        outcomes = self._treatments.observe(record, risk)
        self.outcomes = () if self.policy.observe_only else outcomes  # nothing was done that helped
        back, moves = self._going_back, record.in_environment or record.others_trained
        if not moves:
            back.rate_spike.update(record, self._guard.loss)
        self.trials.update(record)
        verdict, guarded = self._guard.update(record, risk)
        if record.step < LAST_STEP and record.loss_seen and not moves:
            self._initial.update(record.step, record.loss)
        if back.stopped:
            return None
        if back.resigned and not is_nonfinite(record):
            return self._step_down(record, risk)
        is_calm = verdict is None and not (alerts or risk.probability or risk.contributions)
        is_calm = is_calm and not (self._initial.found or back.rate_spike.harms)
        if is_calm and not (self._treatments.active or self._waits):
            tried = self._choice.has_tried or back.rolled_back or self._budget.rollbacks
            if tried and self._treatments.calm_steps >= self.policy.healthy_steps:
                self._end_episode()
            return None
        decision = self._start_anew(record, alerts, risk)
        if decision is not None:
            return decision
        is_ruin = verdict is not None or self._guard.shows_ruin(risk)
        is_batch = verdict is GuardVerdict.SKIP and not self.trials.has_left
        if not is_batch and self._wants_trial(record, risk, is_ruin=is_ruin):
            return self._try(record, guarded, is_ruin=is_ruin)
        if verdict is not None:
            return self._guarded(record, guarded, verdict)
        if self._waits:
            return None
        if self.trials.takes_over and risk.alarm:
            self.trials.takes_over = False
            return self._going_back.roll_back(record, risk, GUARD_RUNG)
        if self._treatments.calm_steps >= self.policy.healthy_steps:
            self._end_episode()
        decision = self._going_back.hold_rate(record, risk)
        decision = decision or self._choice.choose(record, risk, advice)
        return decision or self._step_down(record, risk)

    @property
    def _waits(self) -> bool:
        """An experiment is about to show whether the weights are to blame."""
        return self.waits_for_evaluation or self.trials.is_pending

    def _wants_trial(self, record: StepRecord, risk: CrashRisk, *, is_ruin: bool) -> bool:
        """Whether a loss that has left its level to stay is looked into by an experiment, before
        anything is done about it: no cause is known, and this policy treats such trouble."""
        guard, back = self.policy.guard, self._going_back
        if not (guard.trial_step and guard.skip_spike) or self.policy.observe_only:
            return False
        if self.waits_for_evaluation or back.rolled_back or self._budget.is_spent:
            return False
        is_course = COURSE.issuperset(risk.contributions) and not LEFT.isdisjoint(
            risk.contributions
        )
        if not is_course or back.rate_spike.step >= 0 or is_nonfinite(record):
            return False
        if not is_ruin and self.policy.by_cause.get(risk.cause.value) == []:
            return False  # report only
        return self.trials.wants(record, risk, is_ruin=is_ruin)

    def _try(self, record: StepRecord, risk: CrashRisk, *, is_ruin: bool) -> Decision:
        self.trials.ask(record, risk, is_ruin=is_ruin)
        self._guard.forgive()
        risk = replace(risk, onset_step=self.trials.onset)
        return self._decisions.treat(record, risk, (TRIAL_STEP,), GUARD_RUNG)

    def _guarded(self, record: StepRecord, risk: CrashRisk, verdict: GuardVerdict) -> Decision:
        if verdict is GuardVerdict.SKIP or self._waits:
            return self._decisions.treat(record, risk, ("skip_update",), GUARD_RUNG)
        onset = self._guard.onset_step
        if onset >= 0 and (risk.onset_step < 0 or onset < risk.onset_step):
            risk = replace(risk, onset_step=onset)
        return self._going_back.roll_back(record, risk, GUARD_RUNG)

    def _start_anew(
        self, record: StepRecord, alerts: Sequence[Alert], risk: CrashRisk
    ) -> Decision | None:
        """The start has failed: once more, unless the weights say that it has not."""
        guard = self.policy.guard
        if self._budget.is_spent:
            return None
        hot = next((a.fact for a in alerts if a.detector == HOT_START), "")
        if self._initial.found and guard.false_start:
            reason = (
                f"the loss went up with the first updates, to {record.loss:.6g}, and stayed there"
            )
        elif hot and guard.hot_start:
            reason = hot
        else:
            return None
        risk = replace(
            risk, cause=Cause.DIVERGENCE, reason=reason, subject=Subject.LOSS, onset_step=0
        )
        return self._decisions.treat(record, risk, ("back_to_start",), GUARD_RUNG)

    def _step_down(self, record: StepRecord, risk: CrashRisk) -> Decision | None:
        """Takes back what is in force, so that it costs nothing longer than it has to."""
        if not self._treatments.active:
            return None
        still_high = record.lr > LIMIT_TOLERANCE * self._decisions.lr_limit
        needed = {"limit_lr"} if still_high else set()
        if self._going_back.keeps_fp32:
            needed.add("fp32_fallback")
        name = self._treatments.next_undo(but=needed)
        if name is None:
            return None
        reason = "the run has been healthy since"
        return self._decisions.take_back(record, risk, (name,), reason)

    def _end_needless_treatment(self) -> tuple[str, ...]:
        """Returns the treatments of this episode, which are to be taken back."""
        self._was_needless = False
        undo = self._treatments.take_back_recent(self.policy.healthy_steps)
        self._end_episode()
        return undo

    def _begin_another_training(self) -> tuple[str, ...]:
        """Forgets the course of the last one; returns what is to be taken back."""
        undo = tuple(reversed(self._treatments.active))
        self._treatments.reset()
        self._guard.reset()
        self._initial = InitialDivergence()
        self.trials = TrialSteps()
        self._going_back.begin_training()
        self._end_episode()
        return undo

    def _end_episode(self) -> None:
        self._choice.end_episode()
        self._going_back.end_episode()

    def _forget_levels(self, record: StepRecord) -> None:
        for part in (self._treatments, self._guard, self._initial):
            part.forget_levels()
        self.trials.forget()
        self._going_back.rate_spike.forget_levels(record.lr)

    def state_dict(self) -> dict[str, Any]:
        """JSON-able; an equal ladder goes on from it bit for bit."""
        return {
            **self._decisions.state_dict(),
            **self._going_back.state_dict(),
            **self._choice.state_dict(),
            "guard": self._guard.state_dict(),
            "treatments": self._treatments.state_dict(),
            "budget": self._budget.state_dict(),
            "false_start": self._initial.state_dict(),
            "trials": self.trials.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._decisions.load_state_dict(state)
        self._going_back.load_state_dict(state)
        self._choice.load_state_dict(state)
        self._guard.load_state_dict(state["guard"])
        self._treatments.load_state_dict(state["treatments"])
        self._budget.load_state_dict(state["budget"])
        if "false_start" in state:
            self._initial.load_state_dict(state["false_start"])
        if "trials" in state:
            self.trials.load_state_dict(state["trials"])
