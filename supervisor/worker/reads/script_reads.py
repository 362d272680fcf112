"""What a script reads out of tensors, and which objects its ranks exchange, on the replay log.

What a script reads in a replay: what it read in the recorded run.
"""

from __future__ import annotations

from typing import Any

import torch

from supervisor.storage.steps.replay_log_reader import ReplayLogReader
from supervisor.worker.core.call_state import CallState
from supervisor.worker.core.loop_count import LoopCount
from supervisor.worker.core.replay_comparison import ReplayComparison
from supervisor.worker.core.training_hooks import Call, ScriptReads
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.ranks.silenced_collectives import (
    SilencedCollectives,
    note_objects,
    recorded_objects,
)
from supervisor.worker.reads.recording import Recording, ReplayedReads, decode


class LiveReads(ScriptReads):
    """Writes down what comes."""

    def __init__(self, context: WorkerContext, recording: Recording) -> None:
        self._recording = recording
        self._call_state = context.call_state
        self._reading = context.breakers("reads", records=True)
        self._exchanging = context.breakers("objects", records=True)

    def read(self, kind: int, call: Call) -> Any:
        return self._recording.read(kind, call)

    def read_all(self, tensor: torch.Tensor) -> None:
        with self._reading, self._call_state.region():
            self._recording.large.note(tensor)

    def objects(self, place: list[Any] | None, call: Call, *, all_have: bool) -> Any:
        with self._call_state.region():
            result = call()
            with self._exchanging:
                note_objects(self._recording.replay_log, place, result, all_have=all_have)
            return result

    def plans(self, call: Call) -> Any:
        with self._call_state.region():
            return call()


class RecordedReads(ScriptReads):
    """The replay's side of `ScriptReads`.

    Args:
        count: there is no replay log, and updates are counted; None for none.
    """

    def __init__(
        self,
        replay_log: ReplayLogReader,
        call_state: CallState,
        comparison: ReplayComparison,
        collectives: SilencedCollectives,
        count: LoopCount | None,
    ) -> None:
        self._replay_log = replay_log
        self._large = ReplayedReads(replay_log)
        self._call_state = call_state
        self._comparison = comparison
        self._collectives = collectives
        self._count = count
        self._before_training = 0

    @property
    def are_logged(self) -> bool:
        """Whether a value that the script reads now is the recorded one; before the training it is
        what it is."""
        return self._comparison.mismatch is None and not self._replay_log.is_before_training

    def begin_early(self) -> None:
        """Something is not received that the recorded run received before it trained: from here on
        what the script reads is the recorded run's."""
        if self._comparison.holds:
            with self._comparison:
                self._replay_log.begin_early(self._before_training)

    def read(self, kind: int, call: Call) -> Any:
        if not self.are_logged:
            value = call()
            if not self.are_logged:
                self._before_training += 1
                return value
        if self._replay_log.peek() != kind:
            call()  # one that raises is on no replay log: NumPy asks a tensor for an index first
        with self._comparison:
            return decode(kind, self._replay_log.take(kind))
        return call()

    def read_all(self, tensor: torch.Tensor) -> torch.Tensor | None:
        if not self.are_logged:
            self._before_training += 1
            return None
        with self._call_state.region(), self._comparison:
            return self._large.recorded(tensor)
        return None

    def objects(self, place: list[Any] | None, call: Call, *, all_have: bool) -> Any:
        comparison = self._comparison
        if comparison.mismatch is not None:
            if self._count is None and comparison.steps_done:
                return None
            with self._call_state.region():
                return call()  # as in a live run: all ranks do
        with self._call_state.region(), comparison, self._collectives.really():
            return recorded_objects(self._replay_log, place, call)
        return None

    def plans(self, call: Call) -> Any:
        with self._call_state.region(), self._collectives.really():
            return call()
