"""A second thread that looks at calm steps while torch computes without Python's lock."""

from __future__ import annotations

import threading
from collections.abc import Callable

from supervisor.pipeline import Judgement
from supervisor.records import StepRecord


class BackgroundLook:
    """One batch of steps at a time; given at the start of a backward, taken back some steps later.

    In a backward torch's own code runs for milliseconds without the interpreter's lock, so that the
    judging of eight steps, which would stop the training for half a millisecond, costs it a few
    microseconds where a second core is free, and no more than before where none is. The two locks
    are used as semaphores: those of `threading` are written in Python and take ten times as long.

    Args:
        look: `Pipeline.judge_ahead`; nobody else may use the pipeline between `give` and `take`.

    Attributes:
        is_out: a batch was given and not taken back.
        is_done: `take` need not wait.
    """

    def __init__(self, look: Callable[[list[StepRecord]], list[Judgement]]) -> None:
        self.is_out = False
        self.is_done = False
        self._look = look
        self._thread: threading.Thread | None = None
        self._given, self._finished = threading.Lock(), threading.Lock()
        self._given.acquire()
        self._finished.acquire()
        self._records: list[StepRecord] = []
        self._found: list[Judgement] = []
        self._error: Exception | None = None

    def give(self, records: list[StepRecord]) -> None:
        """Has `records` looked at. Called by the training's thread when nothing `is_out`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="supervisor-look", daemon=True)
            self._thread.start()
        self._records = records
        self.is_out, self.is_done = True, False
        self._given.release()

    def take(self) -> list[Judgement]:
        """Waits for what was found and returns it; empty in a forked child, which has no thread.

        Raises:
            Exception: what `look` raised.
        """
        self.is_out = False
        if self._thread is None or not self._thread.is_alive():
            return []
        self._finished.acquire()
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._found

    def _work(self) -> None:
        while True:
            self._given.acquire()
            self._found = []
            try:
                self._found = self._look(self._records)
            except Exception as error:  # told on the training's thread, where shields are
                self._error = error
            self.is_done = True
            self._finished.release()
