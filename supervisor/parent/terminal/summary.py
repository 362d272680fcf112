"""What the parent prints on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from supervisor.events.event import JournalEvent
from supervisor.first_lines import first_lines
from supervisor.parent.terminal.open_line import OpenLine
from supervisor.parent.terminal.outcome import EXIT_INTERRUPTED, Outcome
from supervisor.records import ExitCause, WorkerExit
from supervisor.shortfalls import Shortfall


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


def describe_next(attempt: int, checkpoint_step: int | None, delay_s: float) -> str:
    """Returns ``attempt 2 starts in 1.0 s from step 80``."""
    start = "the beginning" if checkpoint_step is None else f"step {checkpoint_step}"
    return f"attempt {attempt} starts in {delay_s:.1f} s from {start}"


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
        run_dir: as the user gave it.
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
