"""Going back: a rollback with what comes along when the last one did not hold, and the end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from supervisor.codes import Subject
from supervisor.ladder.decisions import GUARD_RUNG, Budget, Decisions
from supervisor.ladder.guard import Guard, is_nonfinite
from supervisor.ladder.initial_divergence import LAST_STEP
from supervisor.ladder.learning_rate_spike import LearningRateSpike
from supervisor.ladder.rungs import Rungs
from supervisor.ladder.treatments import Treatments
from supervisor.records import ActionResult, Cause, CrashRisk, Decision, StepRecord
from supervisor.settings import PolicySettings


class GoingBack:
    """Decides how a training goes back, and what to do when going back has not helped.

    Attributes:
        rolled_back: in this episode.
        restarts: asked for in this run.
        stopped: the end of the run was asked for.
        resigned: nothing has helped, and all values are finite: as long as they are, nothing more
            is treated, and the run ends as it would alone.
        keeps_fp32: half precision never worked here and is not gone back to.
    """

    def __init__(
        self,
        policy: PolicySettings,
        decisions: Decisions,
        treatments: Treatments,
        budget: Budget,
        rungs: Rungs,
        guard: Guard,
    ) -> None:
        self.policy = policy
        self._decisions, self._treatments, self._budget = decisions, treatments, budget
        self._rungs, self._guard = rungs, guard
        self.rate_spike = LearningRateSpike()
        self.rolled_back = False
        self.restarts = 0
        self.stopped = False
        self.resigned = False
        self.keeps_fp32 = False
        self._is_fp32 = False

    def begin_training(self) -> None:
        """Another training begins in the same process."""
        self.rate_spike = LearningRateSpike()
        self._decisions.lr_limit = math.nan
        self._is_fp32 = self.keeps_fp32 = False

    def end_episode(self) -> None:
        self.rolled_back = False
        self._budget.rollbacks = 0

    def settle(self, result: ActionResult) -> None:
        """Takes in that an action of this room did not apply."""
        if result.name == "fp32_fallback":
            self._is_fp32 = True
        if result.name == "rollback":
            self._budget.rollbacks = max(0, self._budget.rollbacks - 1)

    def hold_rate(self, record: StepRecord, risk: CrashRisk) -> Decision | None:
        """Goes back to before a leap of the learning rate that does harm."""
        leap = self.rate_spike
        if not (leap.harms and self.policy.guard.rate_leap):
            return None
        if "limit_lr" in self._treatments.active:
            return None
        risk = replace(
            risk,
            cause=Cause.DIVERGENCE,
            reason=leap.reason(),
            subject=Subject.LEARNING_RATE,
            onset_step=max(0, leap.step),
        )
        return self.roll_back(record, risk, GUARD_RUNG)

    def roll_back(self, record: StepRecord, risk: CrashRisk, rung: int) -> Decision:
        """A rollback, or what is left when no more are allowed."""
        if self._budget.is_spent or not self._budget.has_rollbacks:
            return self.last_resort(record, risk)
        extra = self._company(record, risk)
        self.count_rollback()
        self._guard.forgive()
        return self._decisions.treat(record, risk, ("rollback", *extra), rung)

    def count_rollback(self) -> None:
        self._budget.rollbacks += 1
        self.rolled_back = True

    def last_resort(self, record: StepRecord, risk: CrashRisk) -> Decision:
        """Restart once, if the policy has such a rung; then it is over.

        Over is the run where values are not finite, and where the policy itself has a rung that
        stops. Else it is the treatment: what stays finite and cannot be helped may be what the
        script wants, and a training that ends by itself is not ended by us.
        """
        index = self._rungs.with_action("restart")
        if index is not None and self.restarts == 0:
            self.restarts += 1
            return self._decisions.treat(record, risk, ("restart",), index)
        has_stop = self._rungs.with_action("stop") is not None
        if not (is_nonfinite(record) or risk.cause is Cause.NONFINITE or has_stop):
            return self._resign(record, risk)
        self.stopped = True
        return self._decisions.treat(record, risk, ("stop",), len(self.policy.rungs))

    def _resign(self, record: StepRecord, risk: CrashRisk) -> Decision:
        """Takes back what is in force, and keeps the state as it is now."""
        self.resigned = True
        undo = tuple(reversed(self._treatments.active))
        self._treatments.reset()
        reason = f"no treatment has helped, and all values are finite: left alone ({risk.reason})"
        decision = self._decisions.treat(record, risk, ("checkpoint",), GUARD_RUNG)
        return replace(decision, undo=undo, reason=reason)

    def _company(self, record: StepRecord, risk: CrashRisk) -> tuple[str, ...]:
        """What comes along with a rollback: the same rollback once more would end the same."""
        if self._rate_has_leapt():
            self._decisions.lr_limit = self.rate_spike.before
            return ("limit_lr",)
        if self._fp32_on_relapse(risk):
            # Half precision that never worked will not work later: this one is not taken back.
            self.keeps_fp32 = record.step < LAST_STEP
            return ("fp32_fallback",)
        return ("cut_lr",) if self._cuts_on_relapse() else ()

    def _rate_has_leapt(self) -> bool:
        is_new = self.policy.guard.rate_leap and self.rate_spike.step >= 0
        return is_new and "limit_lr" not in self._treatments.active

    def _fp32_on_relapse(self, risk: CrashRisk) -> bool:
        """Numbers that leave their format twice, and a policy that has the remedy untried.

        Nothing else leaves half precision at a NaN, because the guard is asked before the rungs
        (test_escalation: relapses).
        """
        if self._budget.rollbacks < 1 or risk.cause is not Cause.NONFINITE or self._is_fp32:
            return False
        offered = self._rungs.with_action("fp32_fallback", Cause.NONFINITE) is not None
        return offered and "fp32_fallback" not in self._treatments.active

    def _cuts_on_relapse(self) -> bool:
        """Without it a rate that has crept up ends a training (tests/benchmarks/test_ablation.py: a
        rate that creeps up)."""
        return self._budget.rollbacks >= 1

    def state_dict(self) -> dict[str, Any]:
        return {
            "rate_leap": self.rate_spike.state_dict(),
            "rolled_back": self.rolled_back,
            "restarts": self.restarts,
            "stopped": self.stopped,
            "resigned": self.resigned,
            "is_fp32": self._is_fp32,
            "keeps_fp32": self.keeps_fp32,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if "rate_leap" in state:
            self.rate_spike.load_state_dict(state["rate_leap"])
        self.rolled_back = bool(state["rolled_back"])
        self.restarts = int(state["restarts"])
        self.stopped = bool(state["stopped"])
        self.resigned = bool(state.get("resigned", False))
        self._is_fp32 = bool(state.get("is_fp32", False))
        self.keeps_fp32 = bool(state.get("keeps_fp32", False))
