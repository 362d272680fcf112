"""Which rung is taken at a risk: saving, advice, a cause's own list, the mildest not yet tried."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from supervisor.codes import DecisionSource
from supervisor.ladder.decisions import LONG_AGO, Budget, Decisions
from supervisor.ladder.going_back import GoingBack
from supervisor.ladder.guard import CERTAIN, Guard
from supervisor.ladder.rungs import Rungs
from supervisor.records import Cause, CrashRisk, Decision, StepRecord
from supervisor.risk_lines import RiskLines
from supervisor.settings import PolicySettings

COURSE = frozenset(
    {
        "loss_warning", "loss_leap", "loss_persistence", "gradient_warning",
        "steady_climb", "departure", "slow_divergence", "first_rows", "rise_from_zero",
        "lost_at_restart",
    }
)  # fmt: skip
"""Evidence from the course of loss and norm alone. Harder data and another objective make the same,
so it asks for no more than a checkpoint until loss or norm is beyond all that the untrained weights
gave, and not for one step alone (`Guard.shows_ruin`)."""


class RungChoice:
    """Goes up the rungs of a policy, each once in an episode, one treatment in `cooldown_steps`.

    Attributes:
        has_tried: something may have been tried in this episode.
    """

    def __init__(
        self,
        policy: PolicySettings,
        decisions: Decisions,
        going_back: GoingBack,
        guard: Guard,
        rungs: Rungs,
        budget: Budget,
    ) -> None:
        self.policy = policy
        self._lines = RiskLines.of(policy)
        self._decisions, self._going_back, self._guard = decisions, going_back, guard
        self._rungs, self._budget = rungs, budget
        self._advice = Advice(policy)
        self._checkpoint_at = LONG_AGO
        self.has_tried = False

    def end_episode(self) -> None:
        self.has_tried = False
        self._rungs.forget()
        self._advice.forget()

    def choose(
        self, record: StepRecord, risk: CrashRisk, advice: Mapping[str, str]
    ) -> Decision | None:
        """What is to be done at this risk, if anything."""
        rungs = self._rungs
        if risk.probability < rungs.lowest and not self._lines.is_alarm(risk.probability):
            return None
        self.has_tried = True
        if self.policy.by_cause.get(risk.cause.value) == []:
            return None  # report only
        if self._is_course_only(risk):
            return self._save(record, risk)
        fitting = rungs.fitting(risk)
        own = rungs.own_list(risk)
        treating = [i for i in fitting if not rungs.is_free(i)]
        ready = self._decisions.since_treatment >= self.policy.cooldown_steps
        if ready and (treating or own):
            advised = self._advised(record, risk, advice)
            decision = advised or self._treat(record, risk, treating)
            if decision is not None:
                return decision
        if risk.probability >= CERTAIN:
            return None  # the state is sick already: nothing worth saving
        return self._save(record, risk)

    def _is_course_only(self, risk: CrashRisk) -> bool:
        is_course = bool(risk.contributions) and COURSE.issuperset(risk.contributions)
        return is_course and not self._guard.shows_ruin(risk)

    def _save(self, record: StepRecord, risk: CrashRisk) -> Decision | None:
        free = [i for i in self._rungs.fitting(risk) if self._rungs.is_free(i)]
        tick = self._decisions.tick
        if not free or tick - self._checkpoint_at < self.policy.cooldown_steps:
            return None
        self._checkpoint_at = tick
        return self._decisions.treat(record, risk, self._rungs.actions(free[-1]), free[-1])

    def _advised(
        self, record: StepRecord, risk: CrashRisk, advice: Mapping[str, str]
    ) -> Decision | None:
        """What helped in similar cases, before anything else."""
        if not self._lines.is_alarm(risk.probability):
            return None
        certain = risk.probability >= CERTAIN and not self._going_back.rolled_back
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
        reason = f"{decision.reason}; {name} helped in similar cases ({advice[name]})"
        return replace(decision, reason=reason, source=DecisionSource.CASE_LIBRARY)

    def _treat(self, record: StepRecord, risk: CrashRisk, fitting: list[int]) -> Decision | None:
        own = self._rungs.own_list(risk)
        if own and not (risk.probability >= CERTAIN and "rollback" in own[1:]):
            self._rungs.take_own(risk.cause)
            return self._treat_with(record, risk, (own[0],), fitting[0] if fitting else 0)
        index = self._rungs.next(risk, fitting, rolled_back=self._going_back.rolled_back)
        if index is None:
            return self._after_all(record, risk, fitting)
        self._rungs.take(index)
        return self._treat_with(record, risk, self._rungs.actions(index), index)

    def _after_all(self, record: StepRecord, risk: CrashRisk, tried: list[int]) -> Decision | None:
        """Every rung that applies was tried, and was given time: if trouble is certain, the end."""
        has_had_time = self._decisions.since_treatment >= self.policy.verify_steps
        if not (tried and has_had_time and risk.probability >= CERTAIN):
            return None
        return self._going_back.last_resort(record, risk)

    def _treat_with(
        self, record: StepRecord, risk: CrashRisk, actions: tuple[str, ...], rung: int
    ) -> Decision | None:
        back = self._going_back
        if "stop" in actions:
            back.stopped = True
        elif "restart" in actions:
            back.restarts += 1
        elif actions == ("rollback",):
            return back.roll_back(record, risk, rung)
        elif self._budget.is_spent or ("rollback" in actions and not self._budget.has_rollbacks):
            return back.last_resort(record, risk)
        elif "rollback" in actions:
            back.count_rollback()
        return self._decisions.treat(record, risk, actions, rung)

    def state_dict(self) -> dict[str, Any]:
        return {
            **self._rungs.state_dict(),
            "checkpoint_at": self._checkpoint_at,
            "advice": self._advice.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.has_tried = True
        self._rungs.load_state_dict(state)
        self._checkpoint_at = int(state["checkpoint_at"])
        self._advice.load_state_dict(state["advice"])


NOT_ADVISED = frozenset({"checkpoint", "skip_update", "restart", "stop"})
"""Not a case library's business: saving, the guard's work, and what is reached by escalation."""


class Advice:
    """Advice changes the order of a policy's treatments, never its choice of them.

    Each treatment is advised once an episode; after that the policy's own order holds.
    """

    def __init__(self, policy: PolicySettings) -> None:
        self.policy = policy
        self._tried: list[str] = []

    def forget(self) -> None:
        """The episode is over."""
        self._tried = []

    def choose(
        self, names: Iterable[str], cause: Cause, only: Collection[str] | None = None
    ) -> str | None:
        """Returns the first of `names` that the policy has for `cause`; None for none.

        Args:
            names: treatments that helped in similar cases, the best first.
            cause: of the present trouble.
            only: where trouble leaves no time for anything milder, what may be tried.
        """
        if not self.policy.case_library:
            return None
        offered = self._offered(cause) - NOT_ADVISED
        for name in names:
            if name in offered and name not in self._tried and (only is None or name in only):
                self._tried.append(name)
                return name
        return None

    def _offered(self, cause: Cause) -> set[str]:
        rungs = [r for r in self.policy.rungs if not r.causes or cause.value in r.causes]
        own = self.policy.by_cause.get(cause.value, [])
        return {name for rung in rungs for name in rung.actions} | set(own)

    def state_dict(self) -> dict[str, Any]:
        return {"tried": list(self._tried)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._tried = list(state["tried"])
