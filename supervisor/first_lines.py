"""The four lines that say of a run what is asked first. Pure.

The terminal's end, `watch`, the live page and the report show the same: how far it is, whether it
was resumed exactly, what was treated and what that cost, and the command that comes next.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from supervisor.codes import Exactness
from supervisor.events.event import JournalEvent, of_kind
from supervisor.events.run_events import AttemptStarted, GaveUp, RunFinished
from supervisor.events.state_events import CheckpointStable, Healed, Resumed
from supervisor.events.step_events import ActionEvent, RollbackEvent
from supervisor.shortfalls import Shortfall
from supervisor.storage.journal.events import NOT_DONE, PROTECTIVE, count_treatments

_ENDS = {
    "running": "running",
    "completed": "completed",
    "gave_up": "given up",
    "interrupted": "interrupted",
    "failed": "failed",
    "supervisor_died": "the supervisor's own process is gone",
}
_LONGEST = 200
"""Letters of a reason: two lines of a terminal and a half."""


def first_lines(
    end: str,
    events: Sequence[JournalEvent],
    run_dir: Path,
    *,
    last_step: int | None,
    reason: str = "",
    shortfalls: Sequence[Shortfall] = (),
) -> tuple[str, str, str, str]:
    """Returns the lines, each a sentence without a full stop.

    Args:
        end: a state of ``run.json``, or ``supervisor_died``, or ``unknown``.
        events: of the whole journal, in the order of time.
        run_dir: named in full, so that the command is right in any folder.
        last_step: the newest that was trained; None before the first.
        reason: what it is doing, or why it has ended; empty for what the journal says of its end.
        shortfalls: what of it cannot be relied on.
    """
    if not reason and end != "running":
        reason = _reason(events)
    return (
        _how_far(end, events, last_step, reason, shortfalls),
        _resumed(events) + _came_back(events),
        _treated(events),
        f"next: {next_command(end, events, run_dir, shortfalls)}",
    )


def next_command(
    end: str, events: Sequence[JournalEvent], run_dir: Path, shortfalls: Sequence[Shortfall]
) -> str:
    """Returns the command that comes next, quoted for a shell."""
    run = shlex.quote(str(run_dir.absolute()))
    if end == "running":
        return f"supervisor watch {run}"
    if end == "unknown":
        return "supervisor run SCRIPT"
    if end != "completed":
        first = "mend the script, then " if end == "failed" else ""
        return f"{first}supervisor resume {run}"
    stable = [event for event in events if isinstance(event, CheckpointStable)]
    if stable and any(one.is_bad for one in shortfalls):
        return f"supervisor resume {run} --from last-stable"
    return f"supervisor report {run}"


def _reason(events: Sequence[JournalEvent]) -> str:
    """Why the run has ended, as its supervisor has said last; empty if it has begun again since."""
    for event in reversed(events):
        if isinstance(event, (RunFinished, GaveUp)):
            return event.reason
        if isinstance(event, AttemptStarted):
            break
    return ""


def _how_far(
    end: str,
    events: Sequence[JournalEvent],
    last_step: int | None,
    reason: str,
    shortfalls: Sequence[Shortfall],
) -> str:
    attempts = len({event.attempt for event in of_kind(events, AttemptStarted)})
    line = _ENDS.get(end, "nothing is known of its end")
    line += " before its first step" if last_step is None else f" at step {last_step}"
    line += f", after {attempts} attempts" if attempts > 1 else ""
    if end == "completed":
        return f"{line}, but not all is well: {shortfalls[0].title}" if shortfalls else line
    return f"{line}: {_short(reason)}" if reason else line


def _resumed(events: Sequence[JournalEvent]) -> str:
    last: dict[int | None, Resumed] = {}
    for event in of_kind(events, Resumed):  # of several ranks, or taken back, the worst counts
        before = last.get(event.attempt)
        if before is None or event.exactness is not Exactness.EXACT:
            last[event.attempt] = event
    if not last:
        attempts = len({event.attempt for event in of_kind(events, AttemptStarted)})
        return "not resumed, " + (
            "each attempt began at the start" if attempts > 1 else "trained in one go"
        )
    inexact = [event for event in last.values() if event.exactness is not Exactness.EXACT]
    told = (inexact or [*last.values()])[-1]
    how = "approximately" if inexact else "exactly"
    times = ""
    if len(last) > 1:
        times = f"{len(last)} times, " if not inexact else f"{len(inexact)} of {len(last)} times "
    step = "" if told.from_step is None else f" from step {told.from_step}"
    why = f": {_short(told.reason)}" if told.reason else ""
    return f"resumed {times}{how}{step}{why}"


def _came_back(events: Sequence[JournalEvent]) -> str:
    healed = of_kind(events, Healed)
    if not healed:
        return ""
    times = f"{len(healed)} times, last " if len(healed) > 1 else ""
    last = healed[-1]
    return f"; a killed rank came back alone: {times}rank {last.rank} after {last.waited_s:.1f} s"


def _treated(events: Sequence[JournalEvent]) -> str:
    made = count_treatments(events)
    wished = sum(
        event.times
        for event in of_kind(events, ActionEvent)
        if event.outcome in NOT_DONE and event.name not in PROTECTIVE
    )
    if not made:
        return f"not treated, only considered: {wished}" if wished else "not treated"
    names = [name if times == 1 else f"{times} {name}" for name, times in made.items()]
    total = made.total()
    line = f"treated {'once' if total == 1 else f'{total} times'}: {', '.join(names)}"
    stalls = [
        event.cost_s
        for event in of_kind(events, ActionEvent)
        if event.name in made and not event.is_verdict and math.isfinite(event.cost_s)
    ]
    thrown = {
        (event.attempt, event.from_step, event.to_step): max(0, event.from_step - event.to_step)
        for event in of_kind(events, RollbackEvent)
        if event.from_step is not None and event.to_step is not None
    }
    costs = [f"{sum(stalls):.2g} s"] if sum(stalls) >= 0.005 else []
    if lost := sum(thrown.values()):
        costs.append(f"{lost} step{'' if lost == 1 else 's'} thrown away")
    if made["skip_update"]:
        count = made["skip_update"]
        costs.append(f"{count} update{'' if count == 1 else 's'} left out")
    return f"{line}; cost: {', '.join(costs)}" if costs else f"{line}; cost: nothing to speak of"


def _short(text: str) -> str:
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 4]} ..."
