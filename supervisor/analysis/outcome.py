"""What a fault did to a run: its final loss, what was lost, and whether that counts as survived."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from supervisor.analysis.trial_run import TrialRun
from supervisor.codes import ActionOutcome, Warned
from supervisor.errors import SupervisorError
from supervisor.events.run_events import AttemptStarted
from supervisor.events.state_events import CheckpointRejected, Healed, WarningEvent
from supervisor.events.step_events import ActionEvent, RollbackEvent, UpdateSkipped
from supervisor.records import Plain
from supervisor.storage.steps.flight_reader import read_steps
from supervisor.storage.steps.step_rows import UPDATE_SKIPPED

FINAL_STEPS = 10
"""The final loss is the mean over this many last steps."""
TOLERANCE = 0.02
"""A final loss at most this share above the reference's counts as the same."""
RULE = (
    f"survived: the run reached its end, and its final loss (mean of the last {FINAL_STEPS} "
    f"steps) is at most {TOLERANCE:.0%}, or two standard errors of the reference's own noise, "
    "above that of the undisturbed run with as many steps fewer as were undone or left out"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceRun:
    """The undisturbed run.

    Attributes:
        losses: of every step; NaN where none was seen.
        seconds: how long it took, start of the processes included.
        slowest_step_s: the 99th percentile of its step times.
    """

    losses: tuple[float, ...]
    seconds: float
    slowest_step_s: float

    @property
    def final_loss(self) -> float:
        return self.final_loss_before(0)

    def final_loss_before(self, steps: int) -> float:
        """Returns what the final loss would be if the run had ended this many steps earlier."""
        end = max(FINAL_STEPS, len(self.losses) - steps)
        return float(np.mean(self.losses[end - FINAL_STEPS : end]))

    def limit(self, behind: int) -> float:
        """Returns the highest final loss that counts as survived (`RULE`)."""
        mean = max(self.final_loss, self.final_loss_before(behind))
        spread = float(np.std(self.losses[-2 * FINAL_STEPS :]))
        noise = 2.0 * spread * math.sqrt(2.0 / FINAL_STEPS)
        return mean + max(TOLERANCE * abs(mean), noise)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultOutcome(Plain):
    """One row of a drill's result.

    Attributes:
        survived: see `RULE`.
        final_loss, reference_loss: NaN if no loss was seen.
        steps_lost: steps that were repeated, undone or left out.
        seconds_lost: time beyond that of the reference.
        detail: how it went, in a few words.
    """

    name: str
    survived: bool
    final_loss: float
    reference_loss: float
    steps_lost: int
    seconds_lost: float
    detail: str


def read_reference(run: TrialRun) -> ReferenceRun:
    """Returns the figures of the undisturbed run.

    Raises:
        SupervisorError: it made no step.
    """
    rows = read_steps(run.rundir)
    if not len(rows):
        raise SupervisorError(
            f"{run.rundir.root}: no training step was seen: the script must train with torch, in "
            "the process that is started"
        )
    times = rows["step_time_s"][np.isfinite(rows["step_time_s"])]
    return ReferenceRun(
        losses=tuple(rows["loss"].tolist()),
        seconds=run.seconds,
        slowest_step_s=float(np.percentile(times, 99)) if len(times) else 1.0,
    )


def judge(name: str, run: TrialRun, reference: ReferenceRun, seconds: float) -> FaultOutcome:
    """Returns the outcome of a run under a fault.

    Args:
        name: of the fault.
        run: its last part.
        reference: the undisturbed run.
        seconds: of all its parts together.
    """
    rows = read_steps(run.rundir)
    losses = rows["loss"]
    final = float(np.mean(losses[-FINAL_STEPS:])) if len(losses) else math.nan
    repeated, behind = _repeated(run), _behind(run)
    reached = run.returncode == 0 and len(rows) >= len(reference.losses)
    unseen = math.isnan(reference.final_loss)
    same = unseen or (math.isfinite(final) and final <= reference.limit(behind))
    return FaultOutcome(
        name=name,
        survived=reached and same,
        final_loss=final,
        reference_loss=reference.final_loss,
        steps_lost=repeated + behind,
        seconds_lost=max(0.0, seconds - reference.seconds),
        detail=_detail(run) if reached else f"exit code {run.returncode} after {len(rows)} steps",
    )


def _repeated(run: TrialRun) -> int:
    steps = read_steps(run.rundir, all_attempts=True)["step"]
    return len(steps) - len(np.unique(steps))


def _behind(run: TrialRun) -> int:
    """Returns how many of the steps are not in the final weights.

    Follows the number of updates in the weights through rollbacks, ``reinstate`` and restarts.
    """
    rollbacks = {
        (event.attempt, event.from_step): event.to_step
        for event in run.events(RollbackEvent)
        if event.to_step is not None
    }
    reinstated = {
        (event.attempt, event.step): int((event.fields or {})["kept_step"])
        for event in run.events(ActionEvent)
        if event.name == "reinstate" and event.outcome is ActionOutcome.APPLIED
    }
    ages = {0: 0}
    thrown_away: dict[int, int] = {}
    step = -1
    for row in read_steps(run.rundir, all_attempts=True):
        step = int(row["step"])
        before = ages.get(step, step)
        place = (int(row["attempt"]), step)
        after = before + (not row["flags"] & UPDATE_SKIPPED)
        if place in rollbacks:
            thrown_away[step + 1] = after
            after = ages.get(rollbacks[place], rollbacks[place])
        elif place in reinstated:
            after = thrown_away.get(reinstated[place], after)
        ages[step + 1] = after
    return step + 1 - ages[step + 1]


def _detail(run: TrialRun) -> str:
    """Returns ``1 restart, 2 rollback``: what was done about it."""
    counts: dict[str, int] = {}
    for event in run.events(ActionEvent):
        if event.outcome is ActionOutcome.APPLIED and event.name != "checkpoint":
            name = event.name.replace("_", " ")
            counts[name] = counts.get(name, 0) + event.times
    # A second optimizer's bad update (a GAN's) is left out without the ladder.
    others = len(run.events(UpdateSkipped)) - counts.get("skip update", 0)
    if others > 0:
        counts["update left out"] = others
    restarts = len(run.events(AttemptStarted)) - 1
    if restarts > 0:
        counts["new process"] = restarts
    healed = len(run.events(Healed))
    if healed:
        counts["rank back alone"] = healed
    rejected = len(run.events(CheckpointRejected))
    if rejected:
        counts["checkpoint rejected"] = rejected
    unsaved = sum(event.found is Warned.NOT_SAVED for event in run.events(WarningEvent))
    if unsaved:
        counts["checkpoint not saved"] = unsaved
    return ", ".join(f"{name} ×{count}" for name, count in counts.items()) or "nothing was done"
