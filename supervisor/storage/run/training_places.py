"""Where in its code a script has trained or loaded: for each kind of stack once, innermost first.

The worker notes it (`alive/rank_<r>.places`, a JSON document a line), the parent reads it when a
script is silent: what was never seen to train may take long without being a hang.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

from supervisor.storage.files.private_files import make_private, open_private

MOST = 256
"""Different stacks of one attempt; a trainer with callbacks and evaluation has some twenty."""
_TOLD_APART_BY = 4
"""Innermost frames of the script's or its libraries'. All of them would cost a trainer of a library
10 us a step."""
_MOST_CODES = 4_096
_OURS = str(Path(__file__).parents[2]) + os.sep

computing: set[int] = set()
"""Threads of this process that were seen to compute the training."""


@dataclass(frozen=True, slots=True)
class TrainingPlace:
    """A stack on which the training was seen.

    Attributes:
        thread: its identifier, as `threading.get_ident` gives it and `faulthandler` writes it.
        frames: file and line, innermost first, without torch's and ours.
        is_main: whether that is the main thread.
        loads: it was handed a batch there; else it computed.
    """

    thread: int
    frames: tuple[tuple[str, int], ...]
    is_main: bool = True
    loads: bool = False


class PlaceRecorder:
    """Notes each place once. A place that the disk refuses is lost: then silence counts as ever."""

    def __init__(self, path: Path) -> None:
        """`path`: begun anew."""
        self._path = path
        self._known: set[tuple[int, ...]] = set()
        self._numbers: dict[CodeType, int] = {}
        # By `id`, with the code, which lives so: to hash one goes through all of it.
        self._looked_at: dict[int, tuple[int, CodeType]] = {}
        torch = sys.modules.get("torch")
        torchs = os.path.dirname(getattr(torch, "__file__", None) or _OURS) + os.sep
        self._others = (_OURS, torchs, "<frozen ")
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)

    def note(self, *, loads: bool = False) -> None:
        """Called in the training's thread, from a forward or a batch."""
        key: list[int] = []
        looked_at = self._looked_at
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and len(key) < 2 * _TOLD_APART_BY:
            code = frame.f_code
            seen = looked_at.get(id(code))
            number = self._look_at(code) if seen is None else seen[0]
            if number >= 0:
                key += number, frame.f_lasti
            frame = frame.f_back
        known = tuple(key)
        if known not in self._known and len(self._known) < MOST:
            self._known.add(known)
            if not loads:
                computing.add(threading.get_ident())
            self._write(sys._getframe(1), loads)

    def _write(self, frame: FrameType | None, loads: bool) -> None:
        frames = []
        while frame is not None:
            if self._look_at(frame.f_code) >= 0:
                frames.append((frame.f_code.co_filename, frame.f_lineno))
            frame = frame.f_back
        is_main = threading.current_thread() is threading.main_thread()
        line = json.dumps([threading.get_ident(), frames, is_main, loads])
        with contextlib.suppress(OSError):
            make_private(self._path.parent)
            with open_private(self._path, "a") as file:
                file.write(line + "\n")

    def _look_at(self, code: CodeType) -> int:
        """Returns its number; -1 if it is passed over."""
        is_others = code.co_filename.startswith(self._others)
        number = -1 if is_others else self._numbers.setdefault(code, len(self._numbers))
        if len(self._looked_at) < _MOST_CODES:  # some scripts make code at each step
            self._looked_at[id(code)] = number, code
        return number


def read_places(path: Path) -> list[TrainingPlace]:
    """Returns those noted so far; empty if nothing can be read."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return []
    places = []
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, KeyError):
            thread, frames, is_main, loads = json.loads(line)
            told = tuple((str(file), int(number)) for file, number in frames)
            places.append(TrainingPlace(int(thread), told, bool(is_main), bool(loads)))
    return places
