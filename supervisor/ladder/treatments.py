"""Treatments in force: whether they helped, and when they are taken back."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from supervisor.detectors.statistics.robust_window import RobustWindow
from supervisor.records import CrashRisk, StepRecord
from supervisor.risk_lines import RiskLines
from supervisor.settings import PolicySettings

ONE_OFF = frozenset(
    {
        "checkpoint", "skip_update", "rollback", "back_to_start", "restart", "stop",
        "reset_optimizer", "skip_data", "checkpoint_activations", "trial_step",
    }
)  # fmt: skip
"""Actions that are over when they are done; there is nothing to take back."""

SKIP_VERIFY_STEPS = 10

SKIPS_OF_A_BATCH = 2
"""Updates that are left out for one cause within `SKIP_WINDOW` and count as helped. The third is
evidence that the batches are not to blame (the worker has the state checked then)."""
SKIP_WINDOW = 100

LOSS_TOLERANCE = 1.1
"""The loss counts as back when its recent median is within this ratio of that before the trouble,
or within the spread that it had."""


@dataclass(slots=True)
class Trial:
    """A treatment whose outcome is not known yet; ticks are the ladder's own count of steps."""

    name: str
    step: int
    due: int
    loss_limit: float
    cause: str = ""
    rung: int = 0


class TreatmentOutcome(NamedTuple):
    """The receipt's second half: whether a treatment helped.

    Attributes:
        name, step, cause, rung: of the treatment, as when it was begun.
        outcome: ``helped`` or ``failed``.
    """

    name: str
    step: int
    outcome: str
    cause: str
    rung: int


class Treatments:
    """Keeps count of treatments in force and of those under verification."""

    def __init__(self, policy: PolicySettings) -> None:
        self.policy = policy
        self._lines = RiskLines.of(policy)
        self.reset()

    def reset(self) -> None:
        self.active: list[str] = []
        self._begun: list[int] = []
        self._trials: list[Trial] = []
        self._recent = RobustWindow(20)
        self._calm = 0
        self._tick = 0
        self._undone_at: dict[str, int] = {}
        self._patience: dict[str, int] = {}
        self._skips: list[tuple[int, str]] = []

    @property
    def calm_steps(self) -> int:
        """Steps in a row with low risk, since the last treatment or undo at most."""
        return self._calm

    def observe(self, record: StepRecord, risk: CrashRisk) -> tuple[TreatmentOutcome, ...]:
        """Takes in a step; returns the outcomes that became known."""
        self._tick += 1
        if record.loss_seen:
            self._recent.add(record.loss)
        calm = self._lines.is_calm(risk.probability)
        self._calm = self._calm + 1 if calm else 0
        if not self._trials:
            return ()
        due = [trial for trial in self._trials if trial.due <= self._tick]
        if not due:
            return ()
        self._trials = [trial for trial in self._trials if trial.due > self._tick]
        return tuple(
            TreatmentOutcome(t.name, t.step, self._outcome(t, calm), t.cause, t.rung) for t in due
        )

    def _outcome(self, trial: Trial, calm: bool) -> str:
        if trial.loss_limit == -math.inf:
            return "failed"
        back = not len(self._recent) or not self._recent.median > trial.loss_limit
        return "helped" if calm and back else "failed"

    @property
    def waits_for_level(self) -> bool:
        """Whether the loss is not back at the level that a treatment on trial has to restore."""
        limits = [trial.loss_limit for trial in self._trials if trial.loss_limit > -math.inf]
        return bool(limits and len(self._recent)) and self._recent.median > max(limits)

    def start(self, name: str, step: int, before: RobustWindow, *, cause: str, rung: int) -> None:
        """A treatment is applied at `step`; `before` holds the losses before the trouble."""
        steps = self.policy.verify_steps
        if name == "skip_update":
            steps = min(steps, SKIP_VERIFY_STEPS)
            self._skips = [s for s in self._skips if self._tick - s[0] < SKIP_WINDOW]
            self._skips.append((self._tick, cause))
        if name in ("rollback", "back_to_start"):
            for trial in self._trials:
                trial.loss_limit = -math.inf  # what was tried before it did not help
        limit = math.inf
        if len(before):
            limit = before.median + max(
                (LOSS_TOLERANCE - 1) * abs(before.median), before.highest - before.median
            )
        alike = [skip for skip in self._skips if skip[1] == cause]
        if name == "skip_update" and len(alike) > SKIPS_OF_A_BATCH:
            limit = -math.inf  # the batches are not to blame
        if name not in ("checkpoint", "trial_step", "restart", "stop"):
            self._trials.append(
                Trial(
                    name=name,
                    step=step,
                    due=self._tick + steps,
                    loss_limit=limit,
                    cause=cause,
                    rung=rung,
                )
            )
        if name in ONE_OFF:
            return
        undone = self._undone_at.get(name)
        if undone is not None and self._tick - undone <= self.policy.verify_steps:
            self._patience[name] = 2 * self._patience.get(name, 1)
        self.active.append(name)
        self._begun.append(self._tick)
        self._calm = 0

    def failed_to_apply(self, name: str) -> None:
        """The action's precondition failed: it is neither in force nor on trial."""
        for index in range(len(self.active) - 1, -1, -1):
            if self.active[index] == name:
                del self.active[index]
                del self._begun[index]
                break
        for index in range(len(self._trials) - 1, -1, -1):
            if self._trials[index].name == name:
                del self._trials[index]
                break

    def take_back_recent(self, steps: int) -> tuple[str, ...]:
        """Names of the treatments begun within `steps`, latest first; they leave the list."""
        names = []
        while self.active and self._tick - self._begun[-1] <= steps:
            self.failed_to_apply(name := self.active[-1])
            names.append(name)
        return tuple(names)

    def restart_watch(self) -> None:
        """The state was put back: what the loss did since says nothing any more."""
        self._recent.clear()
        self._calm = 0

    def were_not_enough(self, since_step: int) -> None:
        """What was tried after this step has not helped: something else was the cause."""
        for trial in self._trials:
            if trial.step >= since_step:
                trial.loss_limit = -math.inf

    def forget_levels(self) -> None:
        """Another level is adopted: what is on trial cannot bring the old one back, so that nobody
        can say whether it has helped."""
        self._recent.clear()
        self._trials = [trial for trial in self._trials if trial.loss_limit == -math.inf]

    def next_undo(self, but: Collection[str] = ()) -> str | None:
        """The latest treatment, once the run has been healthy long enough; it leaves the list.

        Args:
            but: treatments that are still needed.
        """
        allowed = [index for index, name in enumerate(self.active) if name not in but]
        if not allowed:
            return None
        name = self.active[allowed[-1]]
        if self._calm < self.policy.healthy_steps * self._patience.get(name, 1):
            return None
        del self.active[allowed[-1]]
        del self._begun[allowed[-1]]
        self._undone_at[name] = self._tick
        self._calm = 0
        return name

    def state_dict(self) -> dict[str, Any]:
        return {
            "active": list(self.active),
            "begun": list(self._begun),
            "trials": [asdict(trial) for trial in self._trials],
            "recent": self._recent.state_dict(),
            "calm": self._calm,
            "tick": self._tick,
            "undone_at": dict(self._undone_at),
            "patience": dict(self._patience),
            "skips": [list(skip) for skip in self._skips],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.active = list(state["active"])
        self._begun = list(state["begun"])
        self._trials = [Trial(**trial) for trial in state["trials"]]
        self._recent.load_state_dict(state["recent"])
        self._calm = int(state["calm"])
        self._tick = int(state["tick"])
        self._undone_at = dict(state["undone_at"])
        self._patience = dict(state["patience"])
        self._skips = [(int(tick), str(cause)) for tick, cause in state.get("skips", ())]
