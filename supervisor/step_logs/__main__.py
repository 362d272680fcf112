"""``python -m supervisor.step_logs RUN``: follows a run and writes its steps into its logs.

Ends when its standard input is closed: the parent has ended then, whatever way.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Sequence
from pathlib import Path

from supervisor.config import load_resolved_config
from supervisor.errors import SupervisorError
from supervisor.step_logs.new_steps import NewSteps
from supervisor.step_logs.step_log import StepLog, asked_for, open_log
from supervisor.storage.files.private_files import write_private
from supervisor.storage.run.rundir import RunDirectory

LOOK_S = 1.0


class LogFollower:
    """Brings one log up to date.

    The number of rows written is kept in a file. If this process was killed before it was stored,
    rows come again, and `begin_again` makes the log forget the first ones.
    """

    def __init__(self, rundir: RunDirectory, name: str, log: StepLog) -> None:
        self._log = log
        self._stored = rundir.root / "logs" / f"{name}.rows"
        self._steps = NewSteps(rundir, self._stored_rows())

    def look(self, *, is_last: bool = False) -> None:
        """Writes the steps that have come.

        Raises:
            OSError, RunDirectoryError: a file of the run or of the log failed.
        """
        rows = None
        for new in self._steps.take(all_of_them=is_last):
            if new.begins_again:
                self._log.begin_again(new.step)
            self._log.write(new.step, new.time_s, new.values, row=new.row)
            rows = new.row + 1
        for found in self._steps.mistakes():
            self._log.write_text(found.step or 0, f"mistake/{found.alert_kind}", found.message)
        if rows is not None:
            self._log.flush()
            write_private(self._stored, f"{rows}\n")

    def close(self) -> None:
        self._log.close()
        self._steps.close()

    def _stored_rows(self) -> int:
        try:
            return int(self._stored.read_text())
        except (OSError, ValueError):
            return 0


def follow(followers: Sequence[LogFollower]) -> None:
    """Looks about once a second until standard input is closed."""
    ended = False
    while not ended:
        ready, _, _ = select.select([sys.stdin], [], [], LOOK_S)
        ended = bool(ready) and not os.read(sys.stdin.fileno(), 1)
        for follower in followers:
            follower.look(is_last=ended)


def main(arguments: list[str]) -> int:
    """Returns 0, or 1 with a line on standard error."""
    rundir = RunDirectory(Path(arguments[0]))
    with contextlib.ExitStack() as stack:
        try:
            settings = load_resolved_config(rundir.config_yaml).log
            followers = []
            for name in asked_for(settings):
                followers.append(LogFollower(rundir, name, open_log(name, settings, rundir)))
                stack.callback(followers[-1].close)
            follow(followers)
        except SupervisorError as error:
            print(error, file=sys.stderr)
            return 1
        except Exception as error:  # each package has errors of its own
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
