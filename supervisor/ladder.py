"""The escalation ladder: from risk to what is to be done at this step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from supervisor.detectors.statistics.robust_window import RobustWindow
from supervisor.records import ActionResult, Alert, CrashRisk, Decision, StepRecord
from supervisor.settings import PolicySettings, RungSettings

FREE = frozenset({"checkpoint", "skip_update"})
"""Actions that change nothing of the training's course: no cooldown, no budget."""


def default_rungs() -> list[RungSettings]:
    """The rungs of a policy that names none (REQUIREMENTS K11)."""
    return [
        RungSettings(at=0.3, actions=["checkpoint"]),
        RungSettings(at=0.5, actions=["cut_lr", "tighten_clip"]),
        RungSettings(at=0.7, actions=["rollback"]),
        RungSettings(at=0.7, actions=["fp32_fallback"], causes=["loss_scale", "nonfinite"]),
        RungSettings(at=0.9, actions=["restart"]),
    ]


def default_policy() -> PolicySettings:
    return PolicySettings(rungs=default_rungs())


class EscalationLadder:
    """See docs/prediction.md. First version: guard, rungs with cooldown, undo."""

    def __init__(self, policy: PolicySettings) -> None:
        self.policy = policy
        self._begin()

    def _begin(self) -> None:
        self._loss = RobustWindow(50)
        self._grad = RobustWindow(50)
        self._skips: list[int] = []
        self._last_treated = -(10**9)
        self._last_checkpoint = -(10**9)
        self._healthy = 0
        self._active: list[str] = []
        self._tried = -1
        self._rollbacks = 0

    def decide(
        self, record: StepRecord, alerts: Sequence[Alert], risk: CrashRisk
    ) -> Decision | None:
        decision = (
            self._guard(record, risk) or self._climb(record, risk) or self._undo(record, risk)
        )
        self._take_in(record)
        return decision

    def _take_in(self, record: StepRecord) -> None:
        if record.loss_seen:
            self._loss.add(record.loss)
        if record.grad_norm_seen:
            self._grad.add(record.grad_norm)

    def _decision(
        self, record: StepRecord, actions: tuple[str, ...], rung: int, risk: CrashRisk, reason: str
    ) -> Decision:
        onset = risk.onset_step if risk.onset_step >= 0 else record.step
        return Decision(
            step=record.step,
            actions=actions,
            rung=rung,
            cause=risk.cause,
            reason=reason or risk.reason,
            risk=risk.probability,
            onset_step=min([onset, *self._skips]) if "rollback" in actions else onset,
            dry_run=self.policy.observe_only,
        )

    def _guard(self, record: StepRecord, risk: CrashRisk) -> Decision | None:
        guard = self.policy.guard
        self._skips = [s for s in self._skips if record.step - s <= guard.skip_window]
        scaled = math.isfinite(record.loss_scale) and record.loss_scale > 0
        bad = record.has_nonfinite_loss or (record.has_nonfinite_grad and not scaled)
        absurd = self._is_absurd(record.loss, self._loss) or self._is_absurd(
            record.grad_norm, self._grad
        )
        if not ((bad and guard.skip_nonfinite) or (absurd and guard.skip_spike)):
            return None
        persists = bool(self._skips) and record.step - self._skips[-1] == 1
        if persists or len(self._skips) + 1 >= guard.rollback_after_skips:
            decision = self._decision(record, ("rollback",), -1, risk, "trouble persists")
            self._skips = []
            self._rollbacks += 1
            return decision
        self._skips.append(record.step)
        return self._decision(record, ("skip_update",), -1, risk, "")

    def _is_absurd(self, value: float, window: RobustWindow) -> bool:
        if len(window) < 10 or not math.isfinite(value) or window.median <= 0:
            return False
        return (
            value > self.policy.guard.spike_factor * window.median
            and value > 2 * window.quantile(0.95)
        )

    def _climb(self, record: StepRecord, risk: CrashRisk) -> Decision | None:
        rungs = self.policy.rungs
        for index in range(len(rungs) - 1, -1, -1):
            rung = rungs[index]
            if risk.probability < rung.at or (rung.causes and risk.cause.value not in rung.causes):
                continue
            free = all(a in FREE for a in rung.actions)
            last = self._last_checkpoint if free else self._last_treated
            if record.step - last < self.policy.cooldown_steps:
                continue
            if free:
                self._last_checkpoint = record.step
            else:
                if "restart" in rung.actions and not self._rollbacks:
                    continue
                self._last_treated = record.step
                self._rollbacks += "rollback" in rung.actions
                self._active += [
                    a for a in rung.actions if a in ("cut_lr", "tighten_clip", "fp32_fallback")
                ]
            return self._decision(record, tuple(rung.actions), index, risk, "")
        return None

    def _undo(self, record: StepRecord, risk: CrashRisk) -> Decision | None:
        self._healthy = self._healthy + 1 if risk.probability < self.policy.warn_threshold else 0
        if self._healthy < self.policy.healthy_steps or not self._active:
            return None
        self._healthy = 0
        return Decision(
            step=record.step,
            actions=(),
            undo=(self._active.pop(),),
            rung=-2,
            reason="healthy again",
            dry_run=self.policy.observe_only,
        )

    def settle(self, result: ActionResult, step: int) -> None:
        if not result.applied and result.name in self._active:
            self._active.remove(result.name)

    def state_dict(self) -> dict[str, Any]:
        return {
            "loss": self._loss.state_dict(),
            "grad": self._grad.state_dict(),
            "skips": list(self._skips),
            "last_treated": self._last_treated,
            "last_checkpoint": self._last_checkpoint,
            "healthy": self._healthy,
            "active": list(self._active),
            "rollbacks": self._rollbacks,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._begin()
        self._loss.load_state_dict(state["loss"])
        self._grad.load_state_dict(state["grad"])
        self._skips = list(state["skips"])
        self._last_treated = state["last_treated"]
        self._last_checkpoint = state["last_checkpoint"]
        self._healthy = state["healthy"]
        self._active = list(state["active"])
        self._rollbacks = state["rollbacks"]
