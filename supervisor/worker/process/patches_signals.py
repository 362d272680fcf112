"""The script's signal handlers are its own: what arrives is noted, and nothing else changes.

A scheduler may send a signal straight to this process. Whether the script then came to its own end
must be known (`supervisor.parent.restarts.exits`), so a handler of the script's stands behind one
that notes the time; `signal.getsignal` shows what plain python would show. Ours acts only where
the script has none.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from supervisor.storage.files.private_files import open_private
from supervisor.storage.run.mailboxes import SignalTimes

ENDING = (signal.SIGTERM, signal.SIGINT)
"""After these the sender waits for the end, and kills: the last one counts."""
WARNING = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Schedulers send them before a time limit. A script may save and train on, for hours: where it has
gone on after one, later ones tell nothing of its end. So the first one counts."""

Handler = Callable[[int, Any], Any]

_signal, _getsignal = signal.signal, signal.getsignal


class ScriptSignals:
    """Stands between the script and the `signal` module, from the process's start on."""

    def __init__(self) -> None:
        self._pid = 0
        self._signal_times: SignalTimes | None = None
        self._shown: dict[int, Any] = {}
        self._ours: dict[int, Handler] = {}
        self._last: dict[int, float] = {}
        self._first: dict[int, float] = {}
        self._own: dict[int, float] = {}
        self._masks: dict[int, set[int]] = {}
        self._stacks: Any = None
        self._stacks_by = 0

    def install(self, signal_times: Path, stacks: Path) -> None:
        """Called once, before the script begins.

        Args:
            signal_times: where arrivals are told to the parent.
            stacks: where stacks are written, on a signal that nobody uses.
        """
        self._pid = os.getpid()
        with contextlib.suppress(OSError):  # without it the parent sends as it would to any process
            self._signal_times = SignalTimes(signal_times)
        with contextlib.suppress(OSError):
            self._stacks = open_private(stacks, "w")
            self._write_stacks()
        for name in ("signal", "getsignal"):
            theirs = getattr(signal, name)
            setattr(signal, name, functools.wraps(theirs)(_in_place_of(getattr(self, name))))
        for name in ("sigwait", "sigwaitinfo", "sigtimedwait"):
            if hasattr(signal, name):
                setattr(signal, name, self._noting(getattr(signal, name)))
        if _getsignal(signal.SIGINT) is signal.default_int_handler:
            self.signal(signal.SIGINT, signal.default_int_handler)
        os.register_at_fork(
            before=self._hold_ours, after_in_parent=self._release, after_in_child=self._forget_ours
        )

    def act(self, signum: int, handler: Handler) -> None:
        """From here on `handler` acts on a signal for which the script has nothing."""
        self._ours[signum] = handler
        if self.getsignal(signum) is signal.SIG_DFL:
            with contextlib.suppress(ValueError):  # not in the main thread
                self.signal(signum, signal.SIG_DFL)

    def stopped(self, now: float) -> tuple[int, float] | None:
        """Returns which signal may be why the script ends now, and how many seconds ago it came.

        The parent knows how long ago it may have been.
        """
        found = [(now - self._last[s], s) for s in ENDING if s in self._last]
        found += [(now - self._first[s], s) for s in WARNING if s in self._first]
        return (min(found)[1], min(found)[0]) if found else None

    def sends_itself(self, signum: int) -> bool:
        """Called before this process sends itself a signal; returns whether that ends it at once.

        What the script does to itself comes from nobody who would want it to end.
        """
        self._own[signum] = time.time()
        if signum == signal.SIGKILL:
            return True
        if signum in _HARMLESS or (signum in self._ours and signum in self._shown):
            return False
        return _getsignal(signum) is signal.SIG_DFL

    # --- in the place of the module's functions ------------------------------------------------

    def signal(self, signum: int, handler: Any) -> Any:
        try:
            number = int(signum)
        except (TypeError, ValueError):
            return _signal(signum, handler)  # raises
        before = self.getsignal(number)
        if number == self._stacks_by and self._stacks is not None:
            faulthandler.unregister(number)  # the script has found a use for it
            self._write_stacks(but=number)
        instead = handler
        is_default = isinstance(handler, int) and handler == signal.SIG_DFL
        if is_default and number in self._ours:
            instead = self._ours[number]
        if callable(instead) and number in (*ENDING, *WARNING):
            instead = self._seen(instead)
        _signal(signum, instead)
        if instead is handler:
            self._shown.pop(number, None)
        else:
            self._shown[number] = signal.SIG_DFL if is_default else handler
        return before

    def getsignal(self, signum: int) -> Any:
        real = _getsignal(signum)
        is_noting = getattr(real, "notes_for", None) is self
        return self._shown.get(int(signum), real) if is_noting else real

    def _seen(self, handler: Handler) -> Handler:
        def arrived(signum: int, frame: Any) -> Any:
            self._note(signum)
            return handler(signum, frame)

        arrived.notes_for = self  # type: ignore[attr-defined]
        return arrived

    def _noting(self, theirs: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(theirs)
        def wait(*args: Any, **kwargs: Any) -> Any:
            found = theirs(*args, **kwargs)
            if found is not None:
                self._note(int(getattr(found, "si_signo", found)))
            return found

        return wait

    def _note(self, signum: int) -> None:
        if os.getpid() != self._pid:
            return
        now = time.time()
        if now - self._own.pop(signum, 0.0) < _OWN_S:
            return
        self._last[signum] = now
        self._first.setdefault(signum, now)
        if self._signal_times is not None:
            self._signal_times.arrived(signum, now)

    def _hold_ours(self) -> None:
        """A child that the script forks ends as any other when it is asked to, from its first
        moment on: what comes before it has forgotten our handler has to wait."""
        held = signal.pthread_sigmask(signal.SIG_BLOCK, self._ours)
        self._masks[threading.get_ident()] = held

    def _release(self) -> None:
        held = self._masks.pop(threading.get_ident(), None)
        if held is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)

    def _forget_ours(self) -> None:
        ours, self._ours = self._ours, {}
        for signum in ours:
            if self._shown.get(signum) is signal.SIG_DFL:
                with contextlib.suppress(ValueError, OSError):
                    self.signal(signum, signal.SIG_DFL)
        self._release()

    # --- stacks --------------------------------------------------------------------------------

    def _write_stacks(self, but: int = 0) -> None:
        """Has stacks written on a signal that is free: a program's own use of one of these is rare,
        and of several rarer; the highest first, since libraries count from the lowest up.

        `faulthandler` answers even while the interpreter's lock is held.
        """
        self._stacks_by = 0
        taken = _taken_signals()
        top, lowest = int(getattr(signal, "SIGRTMAX", -1)), int(getattr(signal, "SIGRTMIN", 0))
        for number in range(top - 1, lowest, -1):
            if number != but and number not in taken and _getsignal(number) is signal.SIG_DFL:
                faulthandler.register(number, file=self._stacks, all_threads=True)
                self._stacks_by = number
                break
        if self._signal_times is not None:
            self._signal_times.stacks_come_by(self._stacks_by)


_OWN_S = 1.0
"""Within this its own signal has reached a process that does not wait for a device."""
script_signals = ScriptSignals()
"""Of this process."""

_HARMLESS = frozenset(
    {
        *(0, signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH),
        *(signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN),
    }
)
"""Signals that end no process that has no handler for them."""


def _in_place_of(method: Callable[..., Any]) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return function


def _taken_signals() -> set[int]:
    """Signals that are caught, ignored or blocked, by C code too; empty if that cannot be seen."""
    try:
        lines: Iterable[str] = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return set()
    masks = [int(line.split()[1], 16) for line in lines if line[:6] in _MASKS]
    return {number for number in range(1, 65) for mask in masks if mask >> (number - 1) & 1}


_MASKS = ("SigBlk", "SigIgn", "SigCgt")
