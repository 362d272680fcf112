"""Starting from a checkpoint: the fast-forward to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from supervisor.codes import Found
from supervisor.errors import ReplayError
from supervisor.events.state_events import StateFound
from supervisor.storage.checkpoints.checkpoints import Checkpoint
from supervisor.storage.journal.journal import Journal
from supervisor.storage.run.meeting_place import MeetingPlace
from supervisor.storage.steps.tape import TAPE_FORMAT, EntryKind
from supervisor.storage.steps.tape_reader import TapeReader
from supervisor.training_state.census.reach import Reach
from supervisor.training_state.held_values import storages
from supervisor.training_state.registry import Registry
from supervisor.worker.arrival import Arrival
from supervisor.worker.capture.script_census import ScriptCensus
from supervisor.worker.capture.user_tensors import registry_tensors
from supervisor.worker.ground.interception_state import InterceptionState
from supervisor.worker.ground.loop_count import LoopCount
from supervisor.worker.ground.progress import Progress
from supervisor.worker.ground.run_warnings import RunWarnings
from supervisor.worker.ground.user_frames import user_frames
from supervisor.worker.group.common_beginning import began_of
from supervisor.worker.group.exchanges import Exchanges
from supervisor.worker.interception.training_hooks import TrainingHooks
from supervisor.worker.process.exit_request import LOADING, SHORT, ExitRequest
from supervisor.worker.process.heartbeat import Heartbeat
from supervisor.worker.recording.attempt_files import AttemptFiles
from supervisor.worker.recording.loading.loading_proofs import LoadingProofs
from supervisor.worker.replay.fast_forward import FastForward
from supervisor.worker.replay.loading.placeholder_tracker import PlaceholderTracker
from supervisor.worker.replay.loading.recorded_data import RecordedData
from supervisor.worker.replay.silence import Silence
from supervisor.worker.replay.silenced_collectives import SilencedCollectives
from supervisor.worker.session.starting_point import ResumePoint

_NOT_ONE_PLACE = (
    "some ranks wait for others before they begin to train: they cannot all begin in the middle"
)
_OF_LOADING = (EntryKind.BATCH, EntryKind.WORKER_BATCH, EntryKind.STREAM_BATCH)


class Resumption:
    """Brings a new process to where a checkpoint was made; does nothing without one.

    Args:
        start: the checkpoint and its state; None for none.
        is_enabled: the setting ``fast_forward.enabled``.
        tape: path of the tape.
        exchanges: counts what this rank exchanges.
        barrier: where ranks wait for each other in the fast-forward; None where they cannot.

    Attributes:
        has_arrived: the state was put back, or there is none to put back.
        collectives: of the ranks, silenced in the fast-forward; None without one, or without ranks.
    """

    def __init__(
        self,
        start: ResumePoint | None,
        *,
        is_enabled: bool,
        tape: Path,
        interception: InterceptionState,
        registry: Registry,
        progress: Progress,
        loading: LoadingProofs,
        files: AttemptFiles,
        heartbeat: Heartbeat,
        census: ScriptCensus,
        journal: Journal,
        warn: RunWarnings,
        arrival: Arrival,
        exchanges: Exchanges,
        barrier: MeetingPlace | None = None,
    ) -> None:
        self.has_arrived = start is None
        self._start = start
        self._is_enabled = is_enabled
        self._tape = tape
        self._interception = interception
        self._registry = registry
        self._progress = progress
        self._loading = loading
        self._files = files
        self._heartbeat = heartbeat
        self._census = census
        self._journal = journal
        self._warn = warn
        self._arrival = arrival
        self._exchanges = exchanges
        self._silence = Silence()
        self._replay: FastForward | None = None
        self._count = None if start is None else self._counted(start)
        self._guard: PlaceholderTracker | None = None
        several = start is not None and not arrival.ranks.place.is_alone
        self.collectives = SilencedCollectives(barrier, exchanges) if several else None
        self._announced_at = -1
        self._arrived: Callable[[], None] = lambda: None

    @property
    def is_of_ranks(self) -> bool:
        """Whether several ranks train together."""
        return not self._arrival.ranks.place.is_alone

    @property
    def is_pending(self) -> bool:
        """Whether the checkpoint's step has not been reached yet."""
        return self._start is not None

    @property
    def shortfall(self) -> str:
        """What to tell when the script ends before its fast-forward has arrived; empty after."""
        if self._start is None or self._replay is None:
            return ""
        step, done, why = self._start.checkpoint.step, self._replay.steps_done, ""
        if self._replay.disproof is not None:
            why = f" ({self._replay.disproof})"
        return (
            f"the script ended after {done} fast-forwarded steps, before step {step} of its "
            f"checkpoint{why}: the weights were never put back, and what it saved at its end is "
            "not trained"
        )

    def announced(self) -> None:
        """`supervisor.announce` was called in the fast-forward."""
        if self._replay is not None:
            self._announced_at = self._replay.steps_done

    def begin(self, arrived: Callable[[], None]) -> TrainingHooks:
        """Returns the hooks that answer until the checkpoint's step is reached.

        Args:
            arrived: called when the state has been put back, or could not be.
        """
        assert self._start is not None
        self._arrived = arrived
        checkpoint = self._start.checkpoint
        reader, problem = self._open_tape(checkpoint, self._start.saved_by)
        self._files.sizes.source = reader
        self._loading.is_noted = any(True for _ in reader.ahead(*_OF_LOADING))
        self._interception.replaying = True
        skips = checkpoint.meta.get("pure_loading", []) if self._loading.may_leave_out else []
        if skips and problem is None:
            self._guard = PlaceholderTracker(self._interception, self._load_all)
        self._replay = FastForward(
            interception=self._interception,
            registry=self._registry,
            tape=reader,
            target=checkpoint.step,
            at_update=checkpoint.meta.get("at_update") is True,
            update_result=self._start.state.get("update_result"),
            skips=skips,
            data=RecordedData(
                self._start.state.get("held", {}), self._start.state.get("told_states")
            ),
            guard=self._guard,
            collectives=self.collectives,
            count=self._count,
            arrive=self._arrive,
            before_training=self._arrival.parts.training_starts,
            before_first_update=self._census.keep_small_values,
            heartbeat=self._beat,
        )
        self._replay.comparison.disproof = problem
        if problem is None and self.collectives is not None:
            self._exchanges.began = began_of(checkpoint.meta)
            beginning = self._start.beginning
            if beginning is not None and not beginning.is_one_place:
                self.collectives.beginning = beginning
        self._silence.begin()
        return self._replay

    def begin_script(self) -> None:
        """Called last before the script starts: it finds its folders as it found them first.

        Raises:
            OSError: not all could be moved; those that were are put back.
            ReplayError: ranks would wait for each other.
        """
        replay, start = self._replay, self._start
        if replay is None or start is None:
            return
        beginning = start.beginning
        if replay.disproof is not None and beginning is not None and not beginning.is_one_place:
            raise ReplayError(f"{replay.disproof}; and {_NOT_ONE_PLACE}")
        interval = int(start.checkpoint.meta.get("script_files", 0))
        is_recorded = replay.disproof is None and interval >= 1
        if is_recorded:
            self._files.hide_later(interval, start.checkpoint.time)
        else:
            self._files.record.begin_anew()
        self._wait_for_ranks()  # each has files of its own in the folders that one has made
        if is_recorded:
            self._files.replayed.fold()
        self._wait_for_ranks()
        if self.collectives is not None and self._count is None:
            self.collectives.enter()
        if self._guard is not None:
            self._guard.begin()

    def _wait_for_ranks(self) -> None:
        if self.collectives is not None:
            self.collectives.wait_for_all()

    def end(self) -> None:
        """The process ends, wherever it is: what the script says is heard again."""
        self._silence.end()
        if self.collectives is not None:
            self.collectives.leave()

    def _counted(self, start: ResumePoint) -> LoopCount | None:
        """How the loop is counted where no tape leads to the checkpoint."""
        if not self._is_enabled or self._arrival.order.way == "approximate":
            return None
        now = self._arrival.ranks.place.world_size
        return LoopCount.of(start.checkpoint, before=start.saved_by, now=now)

    def _open_tape(self, checkpoint: Checkpoint, saved_by: int) -> tuple[TapeReader, str | None]:
        """Returns the tape up to the checkpoint; or an empty one, and why there is none."""
        end, now = int(checkpoint.meta.get("tape_offset", -1)), self._arrival.ranks.place.world_size
        try:
            if self._count is not None:
                raise ReplayError(self._count.words(splits_data=self._registry.splits_data))
            if saved_by != now:
                raise ReplayError(f"{saved_by} -> {now} ranks: the script's loop from its top")
            if not self._is_enabled:
                raise ReplayError("fast_forward.enabled is false")
            if self._arrival.order.way == "approximate":
                raise ReplayError("an earlier attempt did not come back by a fast-forward")
            if checkpoint.meta.get("tape_lost"):
                raise ReplayError(str(checkpoint.meta["tape_lost"]))
            if end < 0:
                raise ReplayError(
                    "the tape does not tell how the script came to this checkpoint: an earlier "
                    "resume was approximate, an update raised, updates are made within a forward, "
                    "or the run has gone another way since"
                )
            if checkpoint.meta.get("tape_format", 1) != TAPE_FORMAT:
                raise ReplayError("the checkpoint and its tape are of another version")
            return TapeReader(self._tape, end=end), None
        except ReplayError as error:
            return TapeReader.empty(), str(error)

    def _beat(self) -> None:
        assert self._replay is not None
        self._progress.replayed = self._replay.steps_done
        self._heartbeat.replayed(self._replay.steps_done)

    def _load_all(self, why: str) -> None:
        """A batch that was left out is needed: the fast-forward begins again and loads them all."""
        assert self._replay is not None
        self._journal.write(
            StateFound(
                found=Found.LOADING_NEEDED,
                step=self._replay.steps_done,
                message=f"{why}: fast-forward begins again, with all batches loaded",
            )
        )
        raise ExitRequest(LOADING, why)

    def _arrive(self, steps_done: int, disproof: str | None) -> TrainingHooks:
        """The fast-forward stands at its target, or cannot get there: put the state back.

        Raises:
            ExitRequest: that failed. The process must end: the weights are not those of the
                checkpoint, and no script may go on with them by catching what we raise.
        """
        try:
            self._put_back_and_go_on()
        except Exception as error:
            text = f"the state could not be put back: {type(error).__name__}: {error}"
            self._warn(text)
            raise ExitRequest(SHORT, text) from error
        return self._arrival.live

    def _put_back_and_go_on(self) -> None:
        start, replay = self._start, self._replay
        assert start is not None
        assert replay is not None
        self._start = None
        try:
            replay.catch_up()
            reasons = self._arrival.put_state_back(start, replay)
            if self._guard is not None:
                if replay.disproof is None:
                    self._check_leftovers(self._guard, start.state.get("held", {}))
                self._guard.end()
            if self.collectives is not None:
                self.collectives.leave()
            arrived, more = self._arrival.put_rest_back(start, replay)
        finally:
            self._silence.end()
            self._interception.replaying = False
            self._arrived()
        self._arrival.go_on(
            start,
            replay,
            arrived,
            reasons + more,
            announced_at=self._announced_at,
            batches_left_out=self._guard.handed_out if self._guard is not None else 0,
        )
        self._replay = None
        self.has_arrived = True

    def _check_leftovers(self, guard: PlaceholderTracker, saved: dict[str, Any]) -> None:
        held = [place.value for place in Reach(user_frames()) if place.path in saved]
        if guard.left_over(storages(held) | storages(registry_tensors(self._registry))):
            self._load_all("the script keeps what it has computed from batches")
