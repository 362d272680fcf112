"""How a run ended, whether or not anybody was left to write it down."""

from __future__ import annotations

import numpy as np

from supervisor.codes import ExitCause
from supervisor.events.run_events import AttemptStarted, GaveUp, RunFinished
from supervisor.report.facts.attempts import first_exit
from supervisor.report.facts.crash_report import AttemptFacts
from supervisor.report.facts.run_data import RunData
from supervisor.report.facts.step_table import Floats
from supervisor.shortfalls import first_comparable, is_back, level_above

ENDS = (
    "completed",
    "gave_up",
    "interrupted",
    "failed",
    "running",
    "supervisor_died",
    "unknown",
)

EXPLODED = 3.0
HEALTHY = 50
FIRST, LAST = 5, 20


def find_end(run_data: RunData, attempts: tuple[AttemptFacts, ...]) -> str:
    """Returns one of `ENDS`.

    The state in run.json counts. While it still says ``running``, the journal is asked, since the
    report may be written a moment before the state; then whether the parent is alive.
    """
    state = str(run_data.run.get("state") or "")
    if state in ("completed", "gave_up", "interrupted", "failed"):
        return state
    for event in reversed(run_data.events):
        if isinstance(event, AttemptStarted):
            break  # it was resumed: how it had ended before is no end
        if isinstance(event, RunFinished) and event.state in ENDS:
            return event.state
        if isinstance(event, GaveUp):
            return "gave_up"
    ended = first_exit(run_data, attempts[-1].number) if attempts else None
    cause = ended.cause if ended else None
    if cause is ExitCause.COMPLETED:
        return "completed"
    if run_data.parent_alive:
        return "running"
    if cause in (ExitCause.INTERRUPTED, ExitCause.PREEMPTED):
        return "interrupted"
    if cause is ExitCause.USER_ERROR:
        return "failed"
    if state == "running" or run_data.events or len(run_data.steps):
        return "supervisor_died"
    return "unknown"


def ends_nonfinite(run_data: RunData) -> bool:
    """Whether the last loss that was seen is NaN or infinite: such a run ended in bad health."""
    steps = run_data.steps.final
    seen = np.flatnonzero(np.isfinite(steps.loss) | steps.nonfinite_loss)
    return bool(len(seen)) and bool(steps.nonfinite_loss[seen[-1]])


def stays_high(run_data: RunData, step: int, attempt: int | None) -> bool:
    """Whether the run's last losses lie far above what they were before `step`."""
    after, before, _ = _around(run_data, step, attempt)
    if is_far_above(after, before):
        return True
    losses = run_data.steps.final.loss
    return not is_back_after(run_data, step, attempt) and bool(
        level_above(losses[np.isfinite(losses)])
    )


def is_back_after(run_data: RunData, step: int, attempt: int | None) -> bool:
    """Whether the last losses are back at the level before `step`; also where a change since has
    made that level no measure."""
    return first_comparable(run_data.events) > step or is_back(*_around(run_data, step, attempt))


def _around(run_data: RunData, step: int, attempt: int | None) -> tuple[Floats, Floats, Floats]:
    """The last losses, those before `step`, and the first ones."""
    rows = run_data.steps.of_attempt(attempt)
    before = rows.loss[(rows.step < step) & np.isfinite(rows.loss)][-HEALTHY:]
    final = run_data.steps.final
    after = final.loss[(final.step > step) & np.isfinite(final.loss)][-LAST:]
    return after, before, final.loss[np.isfinite(final.loss)][:FIRST]


def is_far_above(after: Floats, before: Floats) -> bool:
    """Whether the median of `after` is above all of `before` and `EXPLODED` times its median.

    `supervisor explain` uses the same factor. False if there are too few losses or some are
    negative, where a multiple means nothing.
    """
    if len(before) < 3 or not len(after) or not np.median(before) > 0:
        return False
    level = float(np.median(after))
    return level > float(before.max()) and level > EXPLODED * float(np.median(before))
