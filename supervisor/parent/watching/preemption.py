"""Notices that the machine will be taken: a time limit, a file, a command (`preemption`)."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from supervisor.settings import PreemptionSettings

FILE = "file:"
SLOWEST_S = 30.0
"""A command that has not answered by then is ended and asked again: a metadata server is local."""


class PreemptionWatch:
    """Asks, without ever waiting, whether the run has to leave.

    Args:
        settings: what to look at, and when.
        environment: of the parent; SLURM tells the end of the job there.
    """

    def __init__(
        self, settings: PreemptionSettings, environment: Mapping[str, str] | None = None
    ) -> None:
        self._settings = settings
        self._leave_at = _leave_at(settings, os.environ if environment is None else environment)
        self._next_look_s = 0.0
        self._begun_s = 0.0
        self._asked: subprocess.Popen[bytes] | None = None

    def look(self) -> str | None:
        """Returns why the run has to leave, or None. Called about once a second.

        Raises:
            OSError: the command could not be started.
        """
        if self._leave_at is not None and time.time() >= self._leave_at:
            return f"the job's time ends in {self._settings.leave_before_s:g} s or less"
        watch = self._settings.watch
        if not watch:
            return None
        if self._asked is not None:
            return self._answer(watch)
        now_s = time.monotonic()
        if now_s < self._next_look_s:
            return None
        self._next_look_s = now_s + self._settings.every_s
        if watch.startswith(FILE):
            path = Path(watch.removeprefix(FILE)).expanduser()
            return f"{path} has appeared: the machine will be taken" if path.exists() else None
        self._begun_s = now_s
        self._asked = subprocess.Popen(
            watch,
            shell=True,  # a person's own line, with pipes
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is for the training
        )
        return None

    def _answer(self, watch: str) -> str | None:
        asked = self._asked
        assert asked is not None
        code = asked.poll()
        if code is None and time.monotonic() - self._begun_s > SLOWEST_S:
            os.killpg(asked.pid, 9)
            asked.wait()
            self._asked = None
        if code is None:
            return None
        self._asked = None
        return f"`{watch}` says that the machine will be taken" if code == 0 else None


def _leave_at(settings: PreemptionSettings, environment: Mapping[str, str]) -> float | None:
    ends_at = settings.ends_at
    if ends_at is None:
        text = environment.get("SLURM_JOB_END_TIME", "")
        ends_at = float(text) if text.isdecimal() else None
    return None if ends_at is None else ends_at - settings.leave_before_s
