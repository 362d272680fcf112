"""Starting from a checkpoint: the replay to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from supervisor.codes import Found
from supervisor.errors import ReplayError
from supervisor.events.state_events import StateFound
from supervisor.storage.steps.replay_log import REPLAY_LOG_FORMAT, EntryKind
from supervisor.storage.steps.replay_log_reader import ReplayLogReader
from supervisor.training_state.held_values import storages
from supervisor.training_state.script_state.reach import Reach
from supervisor.worker.arrival import Arrival
from supervisor.worker.checkpoints.starting_point import ResumePoint
from supervisor.worker.core.loop_count import LoopCount
from supervisor.worker.core.process_signs import LOADING, SHORT, ExitRequest
from supervisor.worker.core.training_hooks import TrainingHooks
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.files.attempt_files import AttemptFiles
from supervisor.worker.loading.placeholder_tracker import PlaceholderTracker
from supervisor.worker.process.output import Silence
from supervisor.worker.ranks.exchanges import CommonBeginning, Counts, began_of
from supervisor.worker.replay import Replay
from supervisor.worker.script_state.user_frames import user_frames
from supervisor.worker.script_state.user_tensors import registry_tensors

_NOT_ONE_PLACE = (
    "some ranks wait for others before they begin to train: they cannot all begin in the middle"
)
_OF_LOADING = (EntryKind.BATCH, EntryKind.WORKER_BATCH, EntryKind.STREAM_BATCH)
_NO_REPLAY_LOG = (
    "the tape does not tell how the script came to this checkpoint: an earlier resume was "
    "approximate, an update raised, updates are made within a forward, or the run has gone another "
    "way since"
)


@dataclass(frozen=True, kw_only=True)
class Route:
    """How a script comes to its checkpoint.

    Attributes:
        start: the checkpoint and its state.
        replay log: up to the checkpoint; or an empty one.
        problem: why the replay log does not lead there; None if it does.
        count: how the loop is counted then; None for not at all.
    """

    start: ResumePoint
    replay_log: ReplayLogReader
    problem: str | None
    count: LoopCount | None

    @classmethod
    def to(cls, context: WorkerContext, start: ResumePoint) -> Route:
        """Returns the way to `start`."""
        meta, is_plain = start.checkpoint.meta, context.order.way == "approximate"
        ranks, is_enabled = context.place.world_size, context.settings.fast_forward.enabled
        end, count = int(meta.get("tape_offset", -1)), None
        if is_enabled and not is_plain:
            count = LoopCount.of(start.checkpoint, before=start.saved_by, now=ranks)
        try:
            if count is not None:
                raise ReplayError(count.words(splits_data=False))
            if start.saved_by != ranks:
                raise ReplayError(
                    f"{start.saved_by} -> {ranks} ranks: the script's loop from its top"
                )
            if not is_enabled:
                raise ReplayError("fast_forward.enabled is false")
            if is_plain:
                raise ReplayError("an earlier attempt did not come back by a fast-forward")
            if meta.get("tape_lost"):
                raise ReplayError(str(meta["tape_lost"]))
            if end < 0:
                raise ReplayError(_NO_REPLAY_LOG)
            if meta.get("tape_format", 1) != REPLAY_LOG_FORMAT:
                raise ReplayError("the checkpoint and its tape are of another version")
            return cls(
                start=start,
                replay_log=ReplayLogReader(context.rundir.replay_log(context.rank), end=end),
                problem=None,
                count=None,
            )
        except ReplayError as error:
            return cls(
                start=start, replay_log=ReplayLogReader.empty(), problem=str(error), count=count
            )

    @property
    def notes_loading(self) -> bool:
        """Whether the recorded run has noted what its data sets load."""
        return any(True for _ in self.replay_log.ahead(*_OF_LOADING))

    @property
    def began(self) -> Counts | None:
        """What the recorded run had exchanged when it began to train; None if not known."""
        return began_of(self.start.checkpoint.meta) if self.problem is None else None

    @property
    def beginning(self) -> CommonBeginning | None:
        """The same of all ranks, where they did not begin at one place; else None."""
        beginning = self.start.beginning
        is_one = self.problem is not None or beginning is None or beginning.is_one_place
        return None if is_one else beginning


class Resumption:
    """Brings a new process to where a checkpoint was made; does nothing without one.

    Args:
        route: to there; None where the script begins from its own beginning.
        replay: goes that way.
        go_live: has the live run answer all patches again.

    Attributes:
        has_arrived: the state was put back, or there is none to put back.
        collectives: of the ranks, silenced in the replay; None without one, or without ranks.
    """

    def __init__(
        self,
        context: WorkerContext,
        route: Route | None,
        replay: Replay | None,
        arrival: Arrival,
        files: AttemptFiles,
        go_live: Callable[[], None],
    ) -> None:
        self.has_arrived = route is None
        self._route = route
        self._replay = replay
        self._arrival = arrival
        self._files = files
        self._registry = context.registry
        self._log = context.rundir.log(context.order.attempt, context.rank)
        self._call_state = context.call_state
        self.warn = context.warn
        self._go_live = go_live
        self._silence = Silence()
        several = replay is not None and self.is_of_ranks
        self.collectives = replay.collectives if replay is not None and several else None
        self._announced_at = -1

    @property
    def is_of_ranks(self) -> bool:
        """Whether several ranks train together."""
        return not self._arrival.ranks.place.is_alone

    @property
    def is_pending(self) -> bool:
        """Whether the checkpoint's step has not been reached yet."""
        return self._route is not None

    @property
    def shortfall(self) -> str:
        """What to tell when the script ends before its fast-forward has arrived; empty after."""
        if self._route is None or self._replay is None:
            return ""
        step, done, why = self._route.start.checkpoint.step, self._replay.steps_done, ""
        if self._replay.mismatch is not None:
            why = f" ({self._replay.mismatch})"
        return (
            f"the script ended after {done} fast-forwarded steps, before step {step} of its "
            f"checkpoint{why}: the weights were never put back, and what it saved at its end is "
            "not trained"
        )

    def announced(self) -> None:
        """`supervisor.announce` was called in the fast-forward."""
        if self._replay is not None:
            self._announced_at = self._replay.steps_done

    def start(self) -> None:
        """From here on the replay answers, and nothing that the script says is heard."""
        if self._route is not None:
            self._call_state.replaying = True
            self._silence.start()

    def begin_script(self) -> None:
        """Called last before the script starts: it finds its folders as it found them first.

        Raises:
            OSError: not all could be moved; those that were are put back.
            ReplayError: ranks would wait for each other.
        """
        replay, route = self._replay, self._route
        if replay is None or route is None:
            return
        beginning, checkpoint = route.start.beginning, route.start.checkpoint
        if replay.mismatch is not None and beginning is not None and not beginning.is_one_place:
            raise ReplayError(f"{replay.mismatch}; and {_NOT_ONE_PLACE}")
        interval = int(checkpoint.meta.get("script_files", 0))
        is_recorded = replay.mismatch is None and interval >= 1
        if is_recorded:
            self._files.hide_later(interval, checkpoint.time)
        else:
            self._files.record.begin_anew()
        self._wait_for_ranks()  # each has files of its own in the folders that one has made
        if is_recorded:
            self._files.replayed.fold()
        self._wait_for_ranks()
        if self.collectives is not None and route.count is None:
            self.collectives.enter()
        if replay.guard is not None:
            replay.guard.start()

    def _wait_for_ranks(self) -> None:
        if self.collectives is not None:
            self.collectives.wait_for_all()

    def stop(self) -> None:
        """The process ends, wherever it is: what the script says is heard again."""
        self._silence.stop()
        if self.collectives is not None:
            self.collectives.leave()

    def load_all(self, why: str) -> None:
        """A batch that was left out is needed: the fast-forward begins again and loads them all.

        Raises:
            ExitRequest: always.
        """
        assert self._replay is not None
        self._arrival.journal.write(
            StateFound(
                found=Found.LOADING_NEEDED,
                step=self._replay.steps_done,
                message=f"{why}: fast-forward begins again, with all batches loaded",
            )
        )
        raise ExitRequest(LOADING, why)

    def arrive(self, steps_done: int, mismatch: str | None) -> TrainingHooks:
        """The replay stands at its target, or cannot get there: the state is put back.

        Returns:
            Who answers from here on.

        Raises:
            ExitRequest: that failed. The process must end: the weights are not those of the
                checkpoint, and no script may go on with them by catching what we raise.
        """
        try:
            self._put_back_and_go_on()
        except Exception as error:
            text = f"the state could not be put back: {type(error).__name__}: {error}"
            self.warn(text)
            raise ExitRequest(SHORT, text) from error
        return self._arrival.live

    def _put_back_and_go_on(self) -> None:
        route, replay, arrival = self._route, self._replay, self._arrival
        assert route is not None
        assert replay is not None
        start, guard, step_s = route.start, replay.guard, replay.step_s
        self._route = None
        try:
            replay.catch_up()
            reasons = arrival.put_state_back(start, replay)
            if guard is not None:
                if replay.mismatch is None:
                    self._check_leftovers(guard, start.state.get("held", {}))
                guard.stop()
            if self.collectives is not None:
                self.collectives.leave()
            arrived, more = arrival.put_rest_back(start, replay)
        finally:
            again = arrival.ranks.collectives
            if again is not None and again.is_catching_up:  # what it says was said before
                self._silence.hold(self._log)
                again.on_met.append(self._silence.stop)
            else:
                self._silence.stop()
            self._call_state.replaying = False
            self._go_live()
        arrival.go_on(
            start,
            replay,
            arrived,
            reasons + more,
            announced_at=self._announced_at,
            batches_left_out=guard.handed_out if guard is not None else 0,
            replayed_step_s=step_s,
        )
        self._replay = None
        self.has_arrived = True

    def _check_leftovers(self, guard: PlaceholderTracker, saved: dict[str, Any]) -> None:
        held = [place.value for place in Reach(user_frames()) if place.path in saved]
        if guard.left_over(storages(held) | storages(registry_tensors(self._registry))):
            self.load_all("the script keeps what it has computed from batches")
