"""The script's gradient hooks that a backward calls: noted in their order, for a replay."""

from __future__ import annotations

import struct
from typing import Protocol

from supervisor.storage.steps.tape import EntryKind, TapeWriter
from supervisor.training_state.gradient_hook import GradientHook
from supervisor.worker.ground.interception_state import InterceptionState
from supervisor.worker.ground.progress import Progress

_CALL = struct.Struct("<II")
_CLOSED = -1


class GradientHooks(Protocol):
    """Both sides: a backward calls a hook of the script behind a parameter's gradient, in any
    thread."""

    def called(self, hook: GradientHook) -> None: ...


class CalledHooks:
    """Runs them as what they are, the script's own code: what they read and update is seen.

    Attributes:
        has_updated: an optimizer has stepped within this backward.
    """

    def __init__(
        self, tape: TapeWriter, interception: InterceptionState, progress: Progress
    ) -> None:
        self._tape = tape
        self._interception = interception
        self._progress = progress
        self._place = _CLOSED
        self.has_updated = False

    @property
    def are_due(self) -> bool:
        """Whether a backward is under way."""
        return self._place != _CLOSED

    def begin(self) -> int:
        """A backward begins; returns what `end` needs."""
        earlier, self._place = self._place, 0
        self.has_updated = False
        return earlier

    def end(self, earlier: int) -> None:
        self._place = earlier

    def called(self, hook: GradientHook) -> None:
        """What is before the first module or optimizer was seen is on no tape."""
        if not self.are_due:
            hook.run()
            return
        if self._progress.has_started or self._progress.has_begun():
            self._tape.append(EntryKind.HOOK, pack_call(hook.number, self._place))
            self._place += 1
        with self._interception.scripts_own() as is_seen:
            if not is_seen:
                self._progress.tape_is_whole = False
            hook.run()


def pack_call(number: int, place: int) -> bytes:
    """Returns a hook's number, and its place among those of its backward, as bytes."""
    return _CALL.pack(number, place)


def unpack_call(data: bytes) -> tuple[int, int]:
    """The inverse of `pack_call`."""
    number, place = _CALL.unpack(data)
    return number, place
