"""Signals that people and schedulers send to the parent, and what of them the worker gets."""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from supervisor.errors import UsageError

# SIGHUP: the terminal is gone. Under nohup it is ignored, and stays so. SIGUSR1 and SIGUSR2:
# schedulers announce the end of an allocation by them.
ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
GRACIOUS = (signal.SIGTERM, signal.SIGINT)
"""The sender waits for the end. After others a script that handles them may train on for hours."""
ANNOUNCING = (signal.SIGUSR1, signal.SIGUSR2)
_NAP_S = 0.05
SETTLE_S = 0.2
"""A scheduler that signals all processes of a job does it within milliseconds."""
TOGETHER_S = 1.0
"""A second signal so soon after the first is the same request, but for SIGINT, which people type:
``timeout`` and several schedulers send one to the process and one to its group."""

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


@dataclass(slots=True, eq=False)
class Request:
    """A signal that asks the run to end, unless the script turns out to handle it (`pass_on`).

    Attributes:
        at_s: when it came, unix seconds.
        is_here: it was sent to this process, not to the parent of another node.
        is_heeded: the workers have got it.
        passed_on_s: when the script got it, whose handler may let the training go on; else None.
    """

    signum: int
    at_s: float
    is_here: bool = True
    is_heeded: bool = False
    passed_on_s: float | None = None


class SignalInbox:
    """Collects the signals that ask the run to end, for the main loop to act on.

    The handlers only note the number, since they may interrupt any operation of the main loop.
    """

    def __init__(self, asking: Iterable[int] = ASKING) -> None:
        """`asking`: the signals that ask the run to end; others of `ASKING` are ignored."""
        self._asking = frozenset(map(int, asking))
        self._requests: list[Request] = []
        self._is_forced_elsewhere = False
        self._resized = False
        self.on_typed: Callable[[], None] | None = None
        """Called at each SIGINT, which a terminal shows as ``^C``; must not block."""

    @property
    def asked_by(self) -> int | None:
        """The first signal that asked the run to end, or None; one that was passed on does not."""
        return next((one.signum for one in self._requests if one.passed_on_s is None), None)

    @property
    def is_forced(self) -> bool:
        """Whether a second signal came: do not wait any longer."""
        asks = [one for one in self._requests if one.passed_on_s is None and one.is_here]
        return self._is_forced_elsewhere or len(asks) > 1

    @property
    def received(self) -> tuple[int, ...]:
        """All signals that this process got, in order."""
        return tuple(one.signum for one in self._requests if one.is_here)

    def note(self, signum: int) -> None:
        now = time.time()
        since_s = math.inf if signum == signal.SIGINT else now - TOGETHER_S
        if not any(one.signum == signum and one.at_s > since_s for one in self._requests):
            self._requests.append(Request(signum, now))

    def unheeded(self) -> list[Request]:
        """Returns the requests that have had time to reach the workers by another way: a scheduler
        may have sent the signal to all processes, and the script's handler is called once."""
        now = time.time()
        found = [one for one in self._requests if not one.is_heeded and now - one.at_s >= SETTLE_S]
        for one in found:
            one.is_heeded = True
        return found

    def stopped_by(self, ended_s: float, grace_s: float) -> int | None:
        """Returns the signal by which an end at `ended_s` (unix seconds) may have come; else None.

        One that was passed on and survived before is none: its handler lets the training go on.
        """
        first: dict[int, float] = {}
        for one in self._requests:
            if one.passed_on_s is None and one.at_s <= ended_s:
                return one.signum
            first.setdefault(one.signum, one.at_s)
        return next((s for s, at_s in first.items() if 0.0 <= ended_s - at_s <= grace_s), None)

    def note_elsewhere(self, signum: int, again: bool) -> None:
        """Another node's parent was sent a signal; where all are sent one, each has its first.

        Args:
            signum: which.
            again: it was not that parent's first.
        """
        self._requests.append(Request(signum, time.time(), is_here=False))
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
        self.note(signum)
        if signum == signal.SIGINT and self.on_typed is not None:
            self.on_typed()

    def _on_resize(self, signum: int, frame: FrameType | None) -> None:
        self._resized = True


_MASKS = (["SigCgt:"], ["SigBlk:"])
"""Of the main thread; one that blocks a signal leaves it to another, that waits for it."""


def _ignore(signum: int, frame: FrameType | None) -> None:
    """Instead of SIG_IGN, which the worker would inherit."""


def to_send(pid: int, signum: int) -> int | None:
    """Returns which signal a process is to get in the place of `signum`; None for none.

    One that it does not take would kill it: a real-time signal, on which stacks are written, is
    not sent then (the process may have become another by an ``exec``), and SIGTERM, for which ours
    acts, is sent in the place of others.
    """
    if signum in (signal.SIGKILL, signal.SIGTERM, signal.SIGWINCH):
        return signum
    try:
        lines = [line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
        masks = {words[0]: int(words[1], 16) for words in lines if words[:1] in _MASKS}
    except OSError:  # not Linux, or it has ended
        masks = {"SigCgt:": 1 << (signal.SIGINT - 1)}
    is_caught, is_blocked = (masks.get(words[0], 0) >> (signum - 1) & 1 for words in _MASKS)
    if signum >= getattr(signal, "SIGRTMIN", math.inf):
        return signum if is_caught else None
    return signum if is_caught or is_blocked else signal.SIGTERM


def signal_name(signum: int) -> str:
    """Returns ``SIGTERM`` for 15; a number that has no name as ``signal 99``."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"
