"""What the process says: of an exception that nobody caught, and not again in a replay."""

from __future__ import annotations

import contextlib
import os
import sys
import types
from itertools import dropwhile
from pathlib import Path

_WORKER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_BEGIN = os.path.join(os.path.dirname(_WORKER), "begin.py")


def show(error: BaseException) -> int:
    """Has `sys.excepthook`, which may be the script's own, say it; returns the exit code."""
    take_out_our_frames(error)
    kind, trace = type(error), error.__traceback__
    sys.last_type, sys.last_value, sys.last_traceback = kind, error, trace
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    hook = getattr(sys, "excepthook", None)
    try:
        if hook is None:
            print("sys.excepthook is missing", file=sys.stderr)
            hook = sys.__excepthook__
        hook(kind, error, trace)
    except SystemExit as leaving:
        return exit_code(leaving)
    except BaseException as failed:
        take_out_our_frames(failed)
        print("Error in sys.excepthook:", file=sys.stderr)
        sys.__excepthook__(type(failed), failed, failed.__traceback__)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(kind, error, trace)
    return 1


def exit_code(leaving: SystemExit) -> int:
    """Returns the code of `sys.exit`; a message in its place is printed."""
    code = leaving.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def take_out_our_frames(error: BaseException) -> None:
    """Leaves the user's, Python's and torch's frames, also in what the error came of."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = _without_ours(one.__traceback__)
        waiting += [one.__cause__, one.__context__]
        waiting += [e for e in getattr(one, "exceptions", ()) if isinstance(e, BaseException)]


def _without_ours(trace: types.TracebackType | None) -> types.TracebackType | None:
    kept: list[types.TracebackType] = []
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith(_WORKER + os.sep) and name != _BEGIN:
            kept.append(trace)
        trace = trace.tb_next
    following: types.TracebackType | None = None
    for trace in reversed(kept):
        trace.tb_next = following
        following = trace
    return following


class Silence:
    """Sends file descriptors 1 and 2 to nowhere between `start` and `stop`."""

    def __init__(self) -> None:
        self._kept: list[tuple[int, int]] = []
        self._held: list[tuple[int, int]] = []
        self._log = Path()

    def start(self) -> None:
        self._flush()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in (1, 2):
            self._kept.append((descriptor, os.dup(descriptor)))
            os.dup2(nowhere, descriptor)
        os.close(nowhere)

    def hold(self, log: Path) -> None:
        """What is said from here on is told at the end, but for what `log` has of its beginning."""
        self._flush()
        self._log = log
        for descriptor, _ in self._kept:
            held = os.memfd_create("supervisor-held")
            os.dup2(held, descriptor)
            self._held.append((descriptor, held))

    def stop(self) -> None:
        """May be called again; then it does nothing."""
        if not self._kept:
            return
        self._flush()
        for descriptor, kept in self._kept:
            os.dup2(kept, descriptor)
            os.close(kept)
        self._kept.clear()
        known: set[bytes] = set()
        if self._held:
            with contextlib.suppress(OSError):  # without a log lines are told twice, not lost
                known.update(self._log.read_bytes().splitlines())
        for descriptor, held in self._held:
            os.lseek(held, 0, os.SEEK_SET)
            with open(held, "rb") as lines, open(os.dup(descriptor), "wb") as out:
                unsaid = dropwhile(lambda line: line.rstrip(b"\r\n") in known, lines)
                out.writelines(unsaid)
        self._held.clear()

    def _flush(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                continue  # closed by the script
