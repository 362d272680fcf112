"""Answers for the batches of loader workers during a fast-forward.

Which batches of loader workers a fast-forward leaves out: decided before it begins.

Workers are asked for a batch some time before it is handed out, so the replay log is read ahead: it
tells where each batch was handed out, by which worker, and what that worker drew for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from supervisor.errors import ReplayError
from supervisor.storage.steps.replay_log import EntryKind
from supervisor.storage.steps.replay_log_reader import ReplayLogReader
from supervisor.training_state.draws import joined
from supervisor.worker.core.call_state import CallState
from supervisor.worker.loading.loader_skipping import (
    NEAR_STEPS,
    FetchMark,
    KnownShapes,
    compare_indices,
)
from supervisor.worker.loading.worker_proof import (
    Iteration,
    LeftOut,
    WorkerMark,
    WorkerNote,
    pack_iteration,
    unpack_iteration,
)

_LAST_OF_EACH = 2
"""So many of the last batches of each worker are loaded, and compared with the recorded ones."""


@dataclass(slots=True)
class WorkerPlan:
    """What is left out of one iterator.

    Attributes:
        is_whole: all of it: no workers are needed.
    """

    is_whole: bool = False
    _last: int = -1
    _left_out: set[int] = field(default_factory=set)
    _drawn_before: dict[int, bytes] = field(default_factory=dict)
    _drawn_by: dict[int, bytes] = field(default_factory=dict)

    def leaves_out(self, place: int) -> bool:
        return place in self._left_out

    def drawn_before(self, place: int, worker: int) -> bytes:
        """What the worker drew for the batches left out since it was last asked for one.

        Called for each batch that is loaded, in order.
        """
        if place <= self._last:
            return self._drawn_before.pop(place, b"")
        return self._drawn_by.pop(worker, b"")

    def leave_out(self, mark: WorkerMark) -> None:
        """Called for each batch in order, or `load` is."""
        self._last = mark.place
        self._left_out.add(mark.place)
        drawn = self._drawn_by.get(mark.worker, b"")
        self._drawn_by[mark.worker] = joined(drawn, mark.drawn)

    def load(self, mark: WorkerMark) -> None:
        self._last = mark.place
        drawn = self._drawn_by.pop(mark.worker, b"")
        if drawn:
            self._drawn_before[mark.place] = drawn


_TOLD = (EntryKind.STEP, EntryKind.EPOCH_END, EntryKind.WORKER_BATCH)


class _Marks:
    """The batches of workers on a replay log, with the steps at which they were handed out.

    Attributes:
        forms: of the batches so far; the first of each is always loaded.
    """

    def __init__(self, replay_log: ReplayLogReader, target: int, allowed: Collection[int]) -> None:
        self.step = 0
        self.forms: set[str] = {""}
        self.ended: dict[int, int] = {}
        self._replay_log = replay_log
        self._target = target
        self._allowed = allowed

    def all(self) -> Iterator[tuple[WorkerMark, bool]]:
        """Yields each batch, and whether it could be left out as far as it alone tells."""
        for kind, data in self._replay_log.ahead(*_TOLD):
            if kind == EntryKind.STEP:
                self.step += 1
            elif kind == EntryKind.EPOCH_END:
                self.ended[unpack_iteration(data)] = self.step
            elif kind == EntryKind.WORKER_BATCH:
                mark = WorkerMark.unpack(data)
                form = FetchMark.unpack(mark.fetch).form if mark.fetch else ""
                is_known = form in self.forms and form != ""
                self.forms.add(form)
                is_early = 0 < self.step < self._target - NEAR_STEPS
                yield mark, is_known and is_early and mark.proof in self._allowed


@dataclass(slots=True)
class _Seen:
    """What the replay log says of one iterator as a whole."""

    last: int = -1
    workers: set[int] = field(default_factory=set)
    verified: dict[int, int] = field(default_factory=dict)
    is_whole: bool = True


def plans(
    replay_log: ReplayLogReader, target: int, allowed: Collection[int]
) -> dict[int, WorkerPlan]:
    """Returns what is left out, by the number of the iterator.

    Args:
        replay log: at its beginning.
        target: steps of the checkpoint.
        allowed: numbers of the data sets whose loading was proved to change nothing.
    """
    if not allowed:
        return {}
    seen: dict[int, _Seen] = defaultdict(_Seen)
    given_up = set()
    marks = _Marks(replay_log, target, allowed)
    for mark, may in marks.all():
        one = seen[mark.iteration]
        one.last = mark.place
        one.workers.add(mark.worker)
        one.is_whole = one.is_whole and may
        if mark.is_verified:
            one.verified[mark.worker] = mark.place
        if mark.is_given_up:
            given_up.add(mark.proof)
    ended = {number: step for number, step in marks.ended.items() if step < target - NEAR_STEPS}
    found: dict[int, WorkerPlan] = defaultdict(WorkerPlan)
    for mark, may in _Marks(replay_log, target, {*allowed} - given_up).all():
        one, plan = seen[mark.iteration], found[mark.iteration]
        plan.is_whole = may and one.is_whole and mark.iteration in ended
        if not plan.is_whole:
            may = may and mark.place <= one.verified.get(mark.worker, -1)
            if mark.iteration not in ended:
                may = may and mark.place <= one.last - _LAST_OF_EACH * len(one.workers)
        if may:
            plan.leave_out(mark)
        else:
            plan.load(mark)
    return dict(found)


class WorkerSkipping:
    """Hands out stand-ins for what workers were not asked for, and compares what they loaded.

    Args:
        target: steps of the checkpoint.
        allowed: numbers of the data sets whose batches may be others.
    """

    def __init__(
        self,
        replay_log: ReplayLogReader,
        call_state: CallState,
        *,
        target: int,
        allowed: Collection[int],
        shapes: KnownShapes,
    ) -> None:
        self._replay_log = replay_log
        self._call_state = call_state
        self._shapes = shapes
        self._allowed = allowed
        self._plans = plans(replay_log, target, allowed)

    def plan(self, number: int) -> WorkerPlan | None:
        return self._plans.get(number)

    def batch(
        self, iteration: Iteration, worker: int, indices: Any, note: WorkerNote | None, batch: Any
    ) -> Any:
        """Returns the batch, or what stands for it if it was left out.

        Raises:
            ReplayError: this is not what the recorded run handed out here.
        """
        if iteration.proof.is_given_up:
            return batch
        mark = WorkerMark.unpack(self._replay_log.take(EntryKind.WORKER_BATCH))
        if (mark.iteration, mark.place) != (iteration.number, iteration.handed_out):
            raise ReplayError("another data loader hands out a batch than in the recorded run")
        if mark.is_given_up:
            iteration.proof.is_given_up = True
            return batch
        fetched = FetchMark.unpack(mark.fetch)
        compare_indices(fetched, indices)
        if mark.worker != worker:
            raise ReplayError("another loader worker loads a batch than in the recorded run")
        if mark.proof in self._allowed:
            iteration.proof.is_costly = True  # as the recorded run has found
        with self._call_state.region():
            if isinstance(batch, LeftOut):
                if not self._shapes.has(fetched):
                    raise ReplayError("a batch was left out though none of its shape was loaded")
                return self._shapes.stand_in(fetched)
            self._shapes.loaded(fetched, batch)
        if note is not None and note.astray:
            raise ReplayError(note.astray)
        if note is not None and note.drawn != mark.drawn:
            raise ReplayError("a loader worker draws other random numbers than in the recorded run")
        return batch

    def ended(self, iteration: Iteration) -> None:
        """Raises ReplayError if the recorded run's loader did not come to its end here."""
        if iteration.proof.is_given_up:
            return
        if self._replay_log.take(EntryKind.EPOCH_END) != pack_iteration(iteration.number):
            raise ReplayError("another data loader has come to its end")
