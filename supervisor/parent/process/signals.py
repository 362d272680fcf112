"""Signals that people and schedulers send to the parent."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

from supervisor.errors import UsageError

# SIGHUP: the terminal is gone. Under nohup it is ignored, and stays so.
ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
_NAP_S = 0.05

NOT_OURS = ("SIGKILL", "SIGSTOP", "SIGCHLD", "SIGWINCH", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL")
"""Cannot be received, or mean something else."""


def signal_numbers(names: Iterable[str]) -> tuple[int, ...]:
    """Returns the numbers of signals named as in ``preemption.signals``.

    Raises:
        UsageError: there is no such signal, or it cannot be used.
    """
    numbers = []
    for name in names:
        if name not in signal.Signals.__members__ or name in NOT_OURS:
            known = ", ".join(signum.name for signum in ASKING)
            raise UsageError(f"preemption.signals: {name}: no signal that can ask: as in {known}")
        numbers.append(int(signal.Signals[name]))
    return tuple(numbers)


class SignalInbox:
    """Collects the signals that ask the run to end, for the main loop to act on.

    The handlers only note the number, since they may interrupt any operation of the main loop.
    """

    def __init__(self, asking: Iterable[int] = ASKING) -> None:
        """`asking`: the signals that ask the run to end; others of `ASKING` are ignored."""
        self._asking = frozenset(map(int, asking))
        self._received: list[int] = []
        self._elsewhere: list[int] = []
        self._is_forced_elsewhere = False
        self._resized = False
        self.on_typed: Callable[[], None] | None = None
        """Called at each SIGINT, which a terminal shows as ``^C``; must not block."""

    @property
    def asked_by(self) -> int | None:
        """The first signal that asked the run to end, or None."""
        return next(iter((*self._received, *self._elsewhere)), None)

    @property
    def is_forced(self) -> bool:
        """Whether a second signal came: do not wait any longer."""
        return len(self._received) > 1 or self._is_forced_elsewhere

    @property
    def received(self) -> tuple[int, ...]:
        """All signals that asked this process to end, in order."""
        return tuple(self._received)

    def note(self, signum: int) -> None:
        self._received.append(signum)

    def note_elsewhere(self, signum: int, again: bool) -> None:
        """Another node's parent was sent a signal; where all are sent one, each has its first.

        Args:
            signum: which.
            again: it was not that parent's first.
        """
        self._elsewhere.append(signum)
        self._is_forced_elsewhere |= again

    def take_resize(self) -> bool:
        """Returns whether the terminal changed its size since the last call."""
        resized, self._resized = self._resized, False
        return resized

    def sleep(self, seconds: float, nap: Callable[[float], None] = time.sleep) -> bool:
        """Waits; returns early, with True, when a signal asks the run to end."""
        deadline = time.monotonic() + seconds
        while self.asked_by is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            nap(min(left, _NAP_S))
        return True

    @contextlib.contextmanager
    def installed(self) -> Iterator[SignalInbox]:
        """Receives signals within the block; outside the main thread nothing is changed."""
        previous: dict[int, Any] = {}
        try:
            for signum in sorted({*map(int, ASKING), *self._asking}):
                if signum not in self._asking:
                    previous[signum] = signal.signal(signum, _ignore)
                elif signal.getsignal(signum) is not signal.SIG_IGN or signum == signal.SIGINT:
                    previous[signum] = signal.signal(signum, self._on_asking)
            previous[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, self._on_resize)
        except ValueError:
            # Not the main thread of this process: its owner handles signals.
            pass
        try:
            yield self
        finally:
            for signum, handler in previous.items():
                signal.signal(signum, handler if handler is not None else signal.SIG_DFL)

    def _on_asking(self, signum: int, frame: FrameType | None) -> None:
        self._received.append(signum)
        if signum == signal.SIGINT and self.on_typed is not None:
            self.on_typed()

    def _on_resize(self, signum: int, frame: FrameType | None) -> None:
        self._resized = True


def _ignore(signum: int, frame: FrameType | None) -> None:
    """Instead of SIG_IGN, which the worker would inherit."""
