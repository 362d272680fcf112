"""The escalation ladder: from risk to what is to be done at this step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from supervisor.codes import DecisionSource, Subject
from supervisor.detectors.statistics.robust_window import RobustWindow
from supervisor.ladder.advice import Advice
from supervisor.ladder.budget import Budget
from supervisor.ladder.failures import Failures
from supervisor.ladder.guard import CERTAIN, Guard, GuardVerdict
from supervisor.ladder.initial_divergence import LAST_STEP, InitialDivergence
from supervisor.ladder.learning_rate_spike import LearningRateSpike
from supervisor.ladder.rungs import FREE, Rungs
from supervisor.ladder.treatments import TreatmentOutcome, Treatments
from supervisor.records import ActionResult, Alert, Cause, CrashRisk, Decision, StepRecord
from supervisor.risk_lines import RiskLines
from supervisor.settings import PolicySettings

LIMIT_TOLERANCE = 1.05
"""A limit on the learning rate is not needed any more when the script's own lies this close."""

MAX_REFUSED_STARTS = 3
"""Looks at the weights of a start that seems to have failed, until it is believed."""

COURSE = frozenset(
    {
        "loss_warning", "loss_leap", "loss_persistence", "gradient_warning", "gradient_with_loss",
        "gradient_persistence", "steady_climb", "departure", "slow_divergence", "adam_rms",
    }
)  # fmt: skip
"""Evidence from the course of loss and norm alone. Harder data and another objective make the same,
so it asks for no more than a checkpoint until loss or norm is beyond all that the untrained weights
gave, and not for one step alone (`Guard.shows_ruin`)."""

GUARD_RUNG = -1
UNDO_RUNG = -2
LONG_AGO = -(10**9)


class EscalationLadder:
    """Chooses treatment: guard first, then rungs by risk, then steps down again.

    * The **guard** (`Guard`) keeps poisoned updates from the weights, and goes back at once when
      the weights themselves are sick. It knows no cooldown.
    * The **rungs** apply by risk and cause. Of those that apply, the mildest not yet tried in this
      episode is taken, one treatment in `cooldown_steps`; at a risk of 0.9 the rung that rolls
      back comes first. Restart and stop are reached only after a rollback, or without budget.
    * **Stepping down**: each treatment is verified after `verify_steps`, and taken back, the latest
      first and one at a time, after `healthy_steps` of low risk. A treatment that was needed again
      right after it had been taken back stays twice as long, so that the ladder cannot oscillate.

    The ladder counts steps itself: a replayed step is a new one.
    """

    def __init__(self, policy: PolicySettings) -> None:
        self.policy = policy
        self._lines = RiskLines.of(policy)
        self._guard = Guard(policy.guard)
        self._rungs = Rungs(policy)
        self._treatments = Treatments(policy)
        self._budget = Budget(policy.budget)
        self._advice = Advice(policy)
        self._failures = Failures()
        self._initial = InitialDivergence()
        self._rate_spike = LearningRateSpike()
        self.outcomes: tuple[TreatmentOutcome, ...] = ()
        self._begin()

    def _begin(self) -> None:
        self._tick = 0
        self._treated_at = LONG_AGO
        self._checkpoint_at = LONG_AGO
        self._rolled_back = False
        self._restarts = 0
        self._stopped = False
        self._refused_starts = 0
        self._is_fp32 = False
        self._keeps_fp32 = False
        self._lr_limit = math.nan
        self._acquitted = False
        self._newer_are_as_good = False

    @property
    def active(self) -> tuple[str, ...]:
        """Treatments in force, oldest first."""
        return tuple(self._treatments.active)

    def decide(
        self,
        record: StepRecord,
        alerts: Sequence[Alert],
        risk: CrashRisk,
        advice: Sequence[str] = (),
    ) -> Decision | None:
        """What is to be done at this step, before its update; None for nothing.

        Args:
            record, alerts, risk: the step, and what is thought of it.
            advice: treatments that helped in earlier cases like this one, the best first. The first
                that the policy has for this cause and that was not advised in this episode yet is
                tried before anything else, if `PolicySettings.case_library` is on.
        """
        undo: tuple[str, ...] = ()
        reinstates = False
        reason = "another training has begun"
        if self._acquitted:
            undo, reason = self._end_of_needless_treatment(), "the weights were not to blame"
            reinstates = self._newer_are_as_good and self.policy.guard.reinstate
        if record.begins_training:
            undo = (*undo, *self._begin_another_training())
        if record.announced:
            self._forget_levels(record)
        decision = self._next_treatment(record, risk, advice)
        if decision is None and reinstates:
            return self._reinstate(record, risk, undo, reason)
        if not undo:
            return decision
        if decision is None:
            return self._take_back(record, risk, undo, reason)
        return replace(decision, undo=(*undo, *decision.undo))

    def acquit(self, *, newer_are_as_good: bool = False) -> None:
        """What was treated last was no sickness of the weights; said before `decide`.

        Args:
            newer_are_as_good: the rollback is to be taken back, too.
        """
        self._acquitted = True
        self._newer_are_as_good = newer_are_as_good

    def _end_of_needless_treatment(self) -> tuple[str, ...]:
        """Returns the treatments of this episode, which are to be taken back."""
        self._acquitted = False
        undo = self._treatments.take_back_recent(self.policy.healthy_steps)
        self._end_episode()
        return undo

    def _begin_another_training(self) -> tuple[str, ...]:
        """Forgets the course of the last one; returns what is to be taken back."""
        undo = tuple(reversed(self._treatments.active))
        self._treatments.reset()
        self._failures.reset()
        self._guard.reset()
        self._initial, self._rate_spike = InitialDivergence(), LearningRateSpike()
        self._lr_limit = math.nan
        self._is_fp32 = self._keeps_fp32 = False
        self._end_episode()
        return undo

    def _forget_levels(self, record: StepRecord) -> None:
        for part in (self._treatments, self._guard, self._initial):
            part.forget_levels()
        self._rate_spike.forget_levels(record.lr)

    def _next_treatment(
        self, record: StepRecord, risk: CrashRisk, advice: Sequence[str]
    ) -> Decision | None:
        self._tick += 1
        self._budget.observe(record)
        outcomes = self._treatments.observe(record, risk)
        self.outcomes = () if self.policy.observe_only else outcomes  # nothing was done that helped
        self._failures.take_in(self.outcomes)
        if not record.in_environment:
            self._rate_spike.update(record, self._guard.loss)
        verdict, guarded = self._guard.update(record, risk)
        if record.step < LAST_STEP and record.loss_seen and not record.in_environment:
            self._initial.update(record.step, record.loss)
        if self._stopped:
            return None
        if self._initial.found:
            decision = self._start_anew(record, risk)
            if decision is not None:
                return decision
        if verdict is not None:
            return self._guarded(record, guarded, verdict)
        if self._treatments.calm_steps >= self.policy.healthy_steps:
            self._end_episode()
        decision = self._hold_rate(record, risk) or self._climb(record, risk, advice)
        return decision or self._step_down(record, risk)

    def settle(self, result: ActionResult) -> None:
        """Takes in what an action did. One that did not apply leaves the way free for the next."""
        if result.applied:
            if result.to_step >= 0:
                self._guard.forgive()
                self._treatments.restart_watch()
            if result.name == "back_to_start":
                self._guard.reset()
                self._initial.forgive()
            return
        self._treatments.failed_to_apply(result.name)
        if result.name == "back_to_start":
            self._refused_starts += 1
        if result.name == "fp32_fallback":
            self._is_fp32 = True
        if result.name == "rollback":
            self._budget.rollbacks = max(0, self._budget.rollbacks - 1)
        if result.name not in FREE and result.name != "skip_update":
            self._treated_at = LONG_AGO

    # -- guard ------------------------------------------------------------------------------------

    def _guarded(
        self, record: StepRecord, risk: CrashRisk, verdict: GuardVerdict
    ) -> Decision | None:
        if verdict is GuardVerdict.SKIP:
            return self._decide(record, risk, ("skip_update",), GUARD_RUNG)
        onset = self._guard.onset_step
        if onset >= 0 and (risk.onset_step < 0 or onset < risk.onset_step):
            risk = replace(risk, onset_step=onset)
        return self._roll_back(record, risk, GUARD_RUNG)

    def _start_anew(self, record: StepRecord, risk: CrashRisk) -> Decision | None:
        """The start has failed: once more, unless the weights say that it has not."""
        may = self.policy.guard.false_start and self._refused_starts < MAX_REFUSED_STARTS
        if not may or self._budget.is_spent:
            return None
        reason = f"the loss went up with the first updates, to {record.loss:.6g}, and stayed there"
        risk = replace(
            risk, cause=Cause.DIVERGENCE, reason=reason, subject=Subject.LOSS, onset_step=0
        )
        return self._decide(record, risk, ("back_to_start",), GUARD_RUNG)

    def _hold_rate(self, record: StepRecord, risk: CrashRisk) -> Decision | None:
        """Goes back to before a leap of the learning rate that does harm."""
        leap = self._rate_spike
        if not (leap.harms and self.policy.guard.rate_leap) or "limit_lr" in self.active:
            return None
        if not self._failures.left(("limit_lr",), Cause.DIVERGENCE):
            return None
        risk = replace(
            risk,
            cause=Cause.DIVERGENCE,
            reason=leap.reason(),
            subject=Subject.LEARNING_RATE,
            onset_step=max(0, leap.step),
        )
        return self._roll_back(record, risk, GUARD_RUNG)

    def _roll_back(self, record: StepRecord, risk: CrashRisk, rung: int) -> Decision:
        """A rollback; milder help comes along when the last one did not hold."""
        if self._budget.is_spent or not self._budget.has_rollbacks:
            return self._last_resort(record, risk)
        extra: tuple[str, ...] = ()
        undo: tuple[str, ...] = ()
        if self._budget.rollbacks == 0:
            # Milder help of the last steps was an attempt at what the rollback now cures.
            undo = self._treatments.take_back_recent(self.policy.cooldown_steps)
        leapt = self.policy.guard.rate_leap and self._rate_spike.step >= 0
        if leapt and "limit_lr" not in self.active:
            extra = ("limit_lr",)
            self._lr_limit = self._rate_spike.before
        elif self._budget.rollbacks >= 1 and self._may_leave_half_precision(risk):
            extra = ("fp32_fallback",)
            # Half precision that never worked will not work later: this one is not taken back.
            self._keeps_fp32 = record.step < LAST_STEP
        elif self._budget.rollbacks >= 1:
            extra = ("cut_lr",)
        if self._budget.rollbacks >= 2:
            extra = (*extra, "tighten_clip")
        extra = self._failures.left(extra, risk.cause)
        self._budget.rollbacks += 1
        self._rolled_back = True
        self._guard.forgive()
        return replace(self._decide(record, risk, ("rollback", *extra), rung), undo=undo)

    def _may_leave_half_precision(self, risk: CrashRisk) -> bool:
        """Numbers that leave their format twice, and a policy that has the remedy untried."""
        if risk.cause is not Cause.NONFINITE or self._is_fp32:
            return False
        offered = self._rungs.with_action("fp32_fallback", Cause.NONFINITE) is not None
        return offered and "fp32_fallback" not in self.active

    def _last_resort(self, record: StepRecord, risk: CrashRisk) -> Decision:
        """Restart once, if the policy has such a rung, then stop."""
        index = self._rungs.with_action("restart")
        if index is not None and self._restarts == 0:
            self._restarts += 1
            return self._decide(record, risk, ("restart",), index)
        self._stopped = True
        return self._decide(record, risk, ("stop",), len(self.policy.rungs))

    # -- rungs ------------------------------------------------------------------------------------

    def _climb(self, record: StepRecord, risk: CrashRisk, advice: Sequence[str]) -> Decision | None:
        rungs = self._rungs
        if risk.probability < rungs.lowest and not self._lines.is_alarm(risk.probability):
            return None
        if self.policy.by_cause.get(risk.cause.value) == []:
            return None  # report only
        is_course = risk.contributions and COURSE.issuperset(risk.contributions)
        if is_course and not self._guard.shows_ruin(risk):
            free = [i for i in rungs.fitting(risk) if rungs.is_free(i)]
            return self._save(record, risk, free)
        fitting = rungs.fitting(risk)
        own = rungs.own_list(risk)
        if not fitting and not own:
            return None
        left = self._failures.left
        treating = [i for i in fitting if not rungs.is_free(i)]
        if risk.probability < CERTAIN:
            treating = [i for i in treating if left(rungs.actions(i), risk.cause)]
        ready = self._tick - self._treated_at >= self.policy.cooldown_steps
        # Milder help may not delay what certain trouble needs: half a window may be all there is.
        urgent = risk.probability >= CERTAIN and not (self._rolled_back or self._restarts)
        ready = ready or (urgent and not self._budget.is_spent)
        if ready and (treating or left(own, risk.cause)):
            advised = self._advised(record, risk, left(advice, risk.cause))
            decision = advised or self._treat(record, risk, treating)
            if decision is not None:
                return decision
        if risk.probability >= CERTAIN:
            return None  # the state is sick already: nothing worth saving
        return self._save(record, risk, [i for i in fitting if rungs.is_free(i)])

    def _save(self, record: StepRecord, risk: CrashRisk, free: list[int]) -> Decision | None:
        if not free or self._tick - self._checkpoint_at < self.policy.cooldown_steps:
            return None
        self._checkpoint_at = self._tick
        return self._decide(record, risk, self._rungs.actions(free[-1]), free[-1])

    def _advised(
        self, record: StepRecord, risk: CrashRisk, advice: Sequence[str]
    ) -> Decision | None:
        """What helped in similar cases, before anything else."""
        if not self._lines.is_alarm(risk.probability):
            return None
        certain = risk.probability >= CERTAIN and not self._rolled_back
        name = self._advice.choose(advice, risk.cause, only=("rollback",) if certain else None)
        if name is None:
            return None
        rung = self._rungs.with_action(name, risk.cause)
        if rung is not None and self._rungs.actions(rung) == (name,):
            self._rungs.take(rung)
        if self._rungs.own_list(risk)[:1] == [name]:
            self._rungs.take_own(risk.cause)
        decision = self._treat_with(record, risk, (name,), 0 if rung is None else rung)
        if decision is None or name not in decision.actions:
            return decision  # no budget is left for it
        reason = f"{decision.reason}; {name} helped in similar cases"
        return replace(decision, reason=reason, source=DecisionSource.CASE_LIBRARY)

    def _treat(self, record: StepRecord, risk: CrashRisk, fitting: list[int]) -> Decision | None:
        own = self._rungs.own_list(risk)
        while own and risk.probability < CERTAIN and not self._failures.left(own[:1], risk.cause):
            self._rungs.take_own(risk.cause)
            own = own[1:]
        if own and not (risk.probability >= CERTAIN and "rollback" in own[1:]):
            self._rungs.take_own(risk.cause)
            return self._treat_with(record, risk, (own[0],), fitting[0] if fitting else 0)
        index = self._rungs.next(risk, fitting, rolled_back=self._rolled_back)
        if index is None:
            return self._repeat(record, risk, fitting)
        self._rungs.take(index)
        return self._treat_with(record, risk, self._rungs.actions(index), index)

    def _repeat(self, record: StepRecord, risk: CrashRisk, fitting: list[int]) -> Decision | None:
        """Every rung that applies was tried, and was given time: again, then the next stronger."""
        if not fitting or self._tick - self._treated_at < self.policy.verify_steps:
            return None
        index = self._rungs.repeat(fitting)
        if index is None:
            return self._last_resort(record, risk)
        is_left = self._failures.left(self._rungs.actions(index), risk.cause)
        if risk.probability < CERTAIN and not is_left:
            return None
        return self._treat_with(record, risk, self._rungs.actions(index), index)

    def _treat_with(
        self, record: StepRecord, risk: CrashRisk, actions: tuple[str, ...], rung: int
    ) -> Decision | None:
        left = self._failures.left(actions, risk.cause)
        if not left:
            return self._pass_turn(record, risk, actions)
        actions = left
        if "stop" in actions:
            self._stopped = True
        elif "restart" in actions:
            self._restarts += 1
        elif "rollback" in actions and len(actions) == 1:
            return self._roll_back(record, risk, rung)
        elif self._budget.is_spent:
            return self._last_resort(record, risk)
        elif "rollback" in actions:
            if not self._budget.has_rollbacks:
                return self._last_resort(record, risk)
            self._budget.rollbacks += 1
            self._rolled_back = True
        return self._decide(record, risk, actions, rung)

    def _pass_turn(
        self, record: StepRecord, risk: CrashRisk, actions: tuple[str, ...]
    ) -> Decision | None:
        """What failed before is not repeated, but what is stronger comes no sooner for that."""
        self._treated_at = self._tick
        if "rollback" in actions:
            if not self._budget.has_rollbacks:
                return self._last_resort(record, risk)
            self._budget.rollbacks += 1
            self._rolled_back = True
        return None

    # -- stepping down ----------------------------------------------------------------------------

    def _end_episode(self) -> None:
        self._rungs.forget()
        self._advice.forget()
        self._rolled_back = False
        self._budget.rollbacks = 0

    def _step_down(self, record: StepRecord, risk: CrashRisk) -> Decision | None:
        if not self._treatments.active:
            return None
        still_high = record.lr > LIMIT_TOLERANCE * self._lr_limit
        needed = {"limit_lr"} if still_high else set()
        if self._keeps_fp32:
            needed.add("fp32_fallback")
        name = self._treatments.next_undo(but=needed)
        if name is None:
            return None
        return self._take_back(record, risk, (name,), "the run has been healthy since")

    def _take_back(
        self, record: StepRecord, risk: CrashRisk, undo: tuple[str, ...], reason: str
    ) -> Decision:
        return Decision(
            step=record.step,
            actions=(),
            undo=undo,
            rung=UNDO_RUNG,
            reason=reason,
            risk=risk.probability,
            dry_run=self.policy.observe_only,
        )

    def _reinstate(
        self, record: StepRecord, risk: CrashRisk, undo: tuple[str, ...], reason: str
    ) -> Decision:
        decision = self._take_back(record, risk, undo, reason)
        # The level before the trouble is no measure of what helps now.
        self._treatments.begin(
            "reinstate",
            record.step,
            RobustWindow(1),
            cause=decision.cause.value,
            rung=decision.rung,
        )
        return replace(decision, actions=("reinstate",))

    # -- common -----------------------------------------------------------------------------------

    def _decide(
        self, record: StepRecord, risk: CrashRisk, actions: tuple[str, ...], rung: int
    ) -> Decision:
        if not FREE.issuperset(actions) and actions != ("skip_update",):
            self._treated_at = self._tick
            self._budget.spend()
        for name in actions:
            self._treatments.begin(
                name, record.step, self._guard.loss, cause=risk.cause.value, rung=rung
            )
        return Decision(
            step=record.step,
            actions=actions,
            rung=rung,
            cause=risk.cause,
            reason=risk.reason,
            subject=risk.subject,
            risk=risk.probability,
            onset_step=risk.onset_step if risk.onset_step >= 0 else record.step,
            dry_run=self.policy.observe_only,
            lr_limit=self._lr_limit if "limit_lr" in actions else math.nan,
        )

    def state_dict(self) -> dict[str, Any]:
        """JSON-able; an equal ladder goes on from it bit for bit."""
        return {
            **self._rungs.state_dict(),
            "guard": self._guard.state_dict(),
            "treatments": self._treatments.state_dict(),
            "budget": self._budget.state_dict(),
            "failures": self._failures.state_dict(),
            "tick": self._tick,
            "treated_at": self._treated_at,
            "checkpoint_at": self._checkpoint_at,
            "advice": self._advice.state_dict(),
            "rolled_back": self._rolled_back,
            "restarts": self._restarts,
            "stopped": self._stopped,
            "false_start": self._initial.state_dict(),
            "rate_leap": self._rate_spike.state_dict(),
            "refused_starts": self._refused_starts,
            "is_fp32": self._is_fp32,
            "keeps_fp32": self._keeps_fp32,
            "lr_limit": self._lr_limit,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._rungs.load_state_dict(state)
        self._guard.load_state_dict(state["guard"])
        if "rate_leap" in state:
            self._initial.load_state_dict(state["false_start"])
            self._rate_spike.load_state_dict(state["rate_leap"])
            self._refused_starts = int(state["refused_starts"])
            self._is_fp32 = bool(state.get("is_fp32", False))
            self._keeps_fp32 = bool(state.get("keeps_fp32", False))
            self._lr_limit = float(state["lr_limit"])
        self._treatments.load_state_dict(state["treatments"])
        self._budget.load_state_dict(state["budget"])
        self._failures.load_state_dict(state.get("failures", {}))
        self._tick = int(state["tick"])
        self._treated_at = int(state["treated_at"])
        self._checkpoint_at = int(state["checkpoint_at"])
        self._advice.load_state_dict(state["advice"])
        self._rolled_back = bool(state["rolled_back"])
        self._restarts = int(state["restarts"])
        self._stopped = bool(state["stopped"])
