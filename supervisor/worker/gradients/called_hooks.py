"""The script's gradient hooks: noted where a backward calls them, called again in a replay."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from typing import Protocol

import torch

from supervisor.errors import ReplayError
from supervisor.storage.steps.replay_log import EntryKind, ReplayLogWriter
from supervisor.storage.steps.replay_log_reader import ReplayLogReader
from supervisor.training_state.registry import GradientHook, Registry
from supervisor.worker.core.call_state import CallState
from supervisor.worker.core.replay_comparison import ReplayComparison
from supervisor.worker.core.worker_context import WorkerContext

_CALL = struct.Struct("<II")
CLOSED = -1


class GradientHooks(Protocol):
    """Both sides: a backward calls a hook of the script behind a parameter's gradient, in any
    thread."""

    def called(self, hook: GradientHook) -> None: ...


class CalledHooks:
    """Runs them as what they are, the script's own code: what they read and update is seen.

    Attributes:
        place: of the next one among those of the backward under way; `CLOSED` outside of any.
        has_updated: an optimizer has stepped within this backward.
    """

    def __init__(self, context: WorkerContext, replay_log: ReplayLogWriter) -> None:
        self._replay_log = replay_log
        self._call_state = context.call_state
        self._progress = context.progress
        self.place = CLOSED
        self.has_updated = False

    def called(self, hook: GradientHook) -> None:
        """What is before the first module or optimizer was seen is on no replay log."""
        if self.place == CLOSED:
            hook.run()
            return
        if self._progress.has_started or self._progress.has_begun():
            self._replay_log.append(EntryKind.HOOK, pack_call(hook.number, self.place))
            self.place += 1
        with self._call_state.scripts_own() as is_seen:
            if not is_seen:
                self._progress.can_replay = False
            hook.run()


def pack_call(number: int, place: int) -> bytes:
    """Returns a hook's number, and its place among those of its backward, as bytes."""
    return _CALL.pack(number, place)


def unpack_call(data: bytes) -> tuple[int, int]:
    """The inverse of `pack_call`."""
    number, place = _CALL.unpack(data)
    return number, place


class RecordedHooks:
    """The other side of `CalledHooks`: those of the first step are called by its real backward,
    those of later ones as the replay log has them.

    Args:
        zeros: returns the gradient that a parameter gets.

    Attributes:
        are_due: a backward is under way.
        has_updated: an optimizer has stepped within this backward.
    """

    def __init__(
        self,
        replay_log: ReplayLogReader,
        call_state: CallState,
        comparison: ReplayComparison,
        registry: Registry,
        zeros: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        self._replay_log = replay_log
        self._call_state = call_state
        self._comparison = comparison
        self._hooks = registry.gradient_hooks
        self._zeros = zeros
        self._place = 0
        self._are_really_called = False
        self.are_due = False
        self.has_updated = False

    @contextlib.contextmanager
    def backward(self, *, is_first_step: bool) -> Iterator[None]:
        """A backward, and all that is done in its place."""
        self._place, self._are_really_called = 0, is_first_step
        self.are_due, self.has_updated = True, False
        try:
            yield
        finally:
            self.are_due = False

    def called(self, hook: GradientHook) -> None:
        """A backward that is executed calls `hook`; one of a later step calls what the replay log
        does not have."""
        if not self.are_due:
            hook.run()
        elif self._are_really_called:
            if self._has_replay_log():
                with self._comparison:
                    self._take(hook.number)
            self._run(hook)

    @contextlib.contextmanager
    def given_alone(self) -> Iterator[None]:
        """Within it gradients are given; parameters with hooks get theirs right before them."""
        hooked = [hook.parameter for hook in self._hooks.values()] if self._has_replay_log() else []
        bare = [p for p in hooked if p is not None and p.grad is None]
        yield
        for parameter in bare:
            parameter.grad = None

    def call(self) -> None:
        """Calls those of a backward that was left out."""
        if self._replay_log.peek() != EntryKind.HOOK:
            return
        with self._comparison, torch.no_grad():
            while self._has_replay_log() and self._replay_log.peek() == EntryKind.HOOK:
                number, place = unpack_call(self._replay_log.find_next(EntryKind.HOOK) or b"")
                if place != self._place:
                    return  # of the next backward
                self._take(number)
                hook = self._hooks.get(number)
                parameter = None if hook is None else hook.parameter
                if hook is None or parameter is None:
                    raise ReplayError("a gradient hook is gone that the recorded run had")
                if parameter.grad is None:
                    parameter.grad = self._zeros(parameter)
                self._run(hook)

    def _take(self, number: int) -> None:
        found = unpack_call(self._replay_log.take(EntryKind.HOOK))
        if found != (number, self._place):
            raise ReplayError("gradient hooks are called in another order")
        self._place += 1

    def _run(self, hook: GradientHook) -> None:
        with self._call_state.scripts_own():
            hook.run()

    def _has_replay_log(self) -> bool:
        return self._comparison.holds and not self._replay_log.is_before_training
