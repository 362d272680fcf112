"""A thread that reports every few seconds, to the end of the run."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod


class Reporter(ABC):
    """Reports from `start` to `close`, on a thread of its own.

    Args:
        name: of the thread.
        every_s: seconds from one report to the next.
        last_s: how long the end of a run waits for the last report at most.
    """

    def __init__(self, name: str, every_s: float, last_s: float) -> None:
        self._every_s = every_s
        self._last_s = last_s
        self._problem: str | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=name, daemon=True)

    @abstractmethod
    def _report(self) -> None:
        """Makes one report. No error of it reaches the run."""

    @abstractmethod
    def _words(self, error: Exception) -> str:
        """Returns what the run log says of an error of `_report`."""

    def start(self) -> None:
        """Reports from now on; further calls do nothing."""
        if self._thread.ident is None:
            self._thread.start()

    def problem(self) -> str | None:
        """Returns once why nothing can be reported."""
        problem, self._problem = self._problem, None
        return problem

    def close(self) -> None:
        """Makes the last report, if there were any."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(self._last_s)

    def _keep(self) -> None:
        told = False
        while True:
            is_over = self._over.is_set()
            try:
                self._report()
                told = False
            except Exception as error:  # of the disk, urllib, ssl: all mean "not reported"
                if not told:
                    self._problem = self._words(error)
                told = True
            if is_over:
                return
            self._over.wait(self._every_s)
