"""What the parent prints on the terminal.

The terminal's lines about treatments: one each, or a count where there are many of a kind.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.codes import Found
from supervisor.events.event import JournalEvent
from supervisor.events.state_events import StateFound
from supervisor.events.step_events import ActionUndone
from supervisor.first_lines import first_lines
from supervisor.parent.terminal.outcome import EXIT_INTERRUPTED, Outcome
from supervisor.parent.terminal.output import OpenLine
from supervisor.records import ExitCause, WorkerExit
from supervisor.shortfalls import Shortfall
from supervisor.storage.journal.events import JournalTreatments


class Teller:
    """Prints lines to standard error, beginning with ``supervisor:``; silent with `quiet`.

    Each starts on a new line, whatever the script has written before.
    """

    def __init__(self, *, quiet: bool, line: OpenLine | None = None) -> None:
        self._quiet = quiet
        self._line = line or OpenLine()

    def say(self, *lines: str) -> None:
        if self._quiet:
            return
        try:
            with self._line.lock:
                for text in lines:
                    begin = self._line.beginning()
                    print(f"{begin}supervisor: {text}", file=sys.stderr, flush=True)
        except OSError:
            self._quiet = True  # the reader is gone, the run is not


def describe_exit(attempt: int, worker_exit: WorkerExit) -> str:
    """Returns ``attempt 1 ended after step 89: killed: SIGKILL, from outside``.

    Of several ranks it names the one that failed first, and whose errors only follow from that.
    """
    after = "" if worker_exit.last_step is None else f" after step {worker_exit.last_step}"
    cause = worker_exit.cause.value.replace("_", " ")
    evidence = f": {worker_exit.evidence[0]}" if worker_exit.evidence else ""
    rank = worker_exit.rank
    first = "" if rank is None or worker_exit.cause is ExitCause.HANG else f"rank {rank} first: "
    others = " and ".join(map(str, worker_exit.following))
    follow = f"; the error of rank {others} is a consequence" if others else ""
    return f"attempt {attempt} ended{after}: {first}{cause}{evidence}{follow}"


def describe_next(
    attempt: int, checkpoint_step: int | None, delay_s: float, replayed_step_s: float | None = None
) -> str:
    """Returns ``attempt 2 starts in 1.0 s from step 80``, with how long its replay takes where it
    is known what a replayed step takes."""
    start = "the beginning" if checkpoint_step is None else f"step {checkpoint_step}"
    text = f"attempt {attempt} starts in {delay_s:.1f} s from {start}"
    if checkpoint_step is None or replayed_step_s is None:
        return text
    return f"{text}, which is replayed in about {checkpoint_step * replayed_step_s:.0f} s"


def closing_lines(
    outcome: Outcome,
    run_dir: Path,
    events: Sequence[JournalEvent],
    *,
    last_step: int | None,
    report: Path | None,
    treated: Sequence[str] = (),
    shortfalls: Sequence[Shortfall] = (),
) -> list[str]:
    """Returns the closing lines: the four of `first_lines`, what else is to be known, the report.

    Args:
        outcome: of the run.
        run_dir: of the run.
        events: of the whole run.
        last_step: that was trained.
        report: where it lies, None without one.
        treated: what else was done to the training, in words.
        shortfalls: what of it cannot be relied on.
    """
    *lines, next_ = first_lines(
        outcome.state,
        events,
        run_dir,
        last_step=last_step,
        reason=outcome.reason,
        shortfalls=shortfalls,
    )
    if outcome.state == "interrupted" and outcome.exit_code != EXIT_INTERRUPTED:
        lines.append("no checkpoint was made yet: a resume starts the training from the beginning")
    lines += treated
    lines += [f"{one.sentence} {one.advice}" for one in shortfalls]
    if report is not None:
        lines.append(f"report: {report}")
    return [*lines, next_]


TOLD_EACH = 3
"""Up to so many of a kind have a line each, enough to see that it continues."""
ANSWERS = (Found.ANOTHER_LEVEL, Found.TRIAL_STEP, Found.SCRIPT_CHANGE)
"""What was found out about a loss that has left its level. Weights that the script has put back may
be meant, or a mistake (an older checkpoint): no experiment can say which, so it is told."""
AGAIN_S = 60.0
"""Later ones of the kind share a line, at most one in so many seconds."""


@dataclass(slots=True)
class _Kind:
    times: int = 0
    untold: int = 0
    last_step: Any = None
    told_s: float = 0.0


class TreatmentLines:
    """Turns the worker's events into lines, as they are merged. `clock`: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._treatments = JournalTreatments()
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def of(self, events: Iterable[JournalEvent]) -> list[str]:
        """Returns the lines after these events, which may be none."""
        now_s = self._clock()
        lines = []
        for event in events:
            for name, _ in self._treatments.pick((event,)):
                lines += self._line("treated", name, event, now_s)
            if isinstance(event, StateFound) and event.found in ANSWERS:
                lines += self._line("found", event.found.value, event, now_s)
            if isinstance(event, ActionUndone):
                lines += self._line("taken back", event.name, event, now_s)
        for (verb, name), kind in self._kinds.items():
            if kind.untold and now_s - kind.told_s >= AGAIN_S:
                lines.append(
                    f"{verb}: {name}, {kind.untold} more like it, the last at step {kind.last_step}"
                )
                kind.untold, kind.told_s = 0, now_s
        return lines

    def _line(self, verb: str, name: str, event: JournalEvent, now_s: float) -> list[str]:
        kind = self._kinds.setdefault((verb, name), _Kind())
        kind.times += event.times
        kind.last_step = event.step
        if kind.times > TOLD_EACH:
            kind.untold += event.times
            return []
        kind.told_s = now_s
        detail, reason = getattr(event, "detail", ""), getattr(event, "reason", "")
        said = f": {detail}" if detail else ""
        why = f" ({reason})" if reason else ""
        more = "; the next ones like it are counted" if kind.times == TOLD_EACH else ""
        return [f"{verb} at step {event.step}: {name}{said}{why}{more}"]
