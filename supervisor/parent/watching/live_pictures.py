"""Draws the run while it goes on, in a process of its own (`report.picture_every_steps`)."""

from __future__ import annotations

import subprocess
import time

from supervisor.own_process import command
from supervisor.storage.run.rundir import RunDirectory

REST = 20.0
"""Pause before the next drawing, as a multiple of the last one's duration: 5 % of one core at most,
and only when nobody else wants it."""

PATIENCE_S = 10.0


class LivePictures:
    """Keeps ``RUN/report/overview.png`` and ``observed.png`` at most some steps old.

    Args:
        rundir: of the run.
        every_steps: steps between two drawings; None draws nothing.
    """

    def __init__(self, rundir: RunDirectory, every_steps: int | None) -> None:
        self._rundir = rundir
        self._every = every_steps
        self._next_step = every_steps or 0
        self._not_before_s = 0.0
        self._begun_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    def look(self, last_step: int | None) -> None:
        """Begins a drawing if one is due and none is under way. Called some times a second.

        Raises:
            OSError: the process could not be started.
        """
        if not self._every or last_step is None:
            return
        now_s = time.monotonic()
        if self._process is not None and self._process.poll() is not None:
            self._process = None
            self._not_before_s = now_s + REST * (now_s - self._begun_s)
        if self._process is not None or last_step < self._next_step or now_s < self._not_before_s:
            return
        self._next_step = last_step - last_step % self._every + self._every
        self._begun_s = now_s
        self._process = subprocess.Popen(
            [*command("supervisor.report.__main__"), "--live", str(self._rundir.root)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is for the training
        )

    def end(self) -> None:
        """Waits for a drawing under way, or ends it. Called once, after the run."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
