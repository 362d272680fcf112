"""Who is told of the script's files."""

from __future__ import annotations

import mmap
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import thread as executors
from dataclasses import replace
from types import FrameType

from supervisor.storage.script_files.script_files import ScriptFiles
from supervisor.storage.script_files.set_aside import SetAside
from supervisor.storage.steps.replay_log import ReplayLogWriter
from supervisor.storage.steps.replay_log_reader import ReplayLogReader
from supervisor.training_state.script_state.reach import Reach
from supervisor.worker.core.part import Arrived, Part, SavePoint
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.files.changed_in_place import mapped_files
from supervisor.worker.files.files_at_arrival import FilesAtArrival
from supervisor.worker.files.replayed_files import ReplayedFiles
from supervisor.worker.files.written_files import FileSizes
from supervisor.worker.script_state.user_frames import user_frames

NAMED_FILES = 3


class AttemptFiles(Part):
    """Who is told of the script's files.

    Args:
        replay log: which is written; `source` is the one that is replayed.
        starts: the attempt goes from no checkpoint.
        tell: called if what the script does with its files is not all recorded.

    Attributes:
        attempt: of the run.
        is_replay: `explain` replays a copy of the run, without the record of its files.
        sizes: of files that are appended to.
        record: what the script has written, for the next attempt.
        replayed: hides what was written later than the checkpoint.
        as_before: makes the files what they were at the checkpoint.
        set_aside: where that is meanwhile.
        journal: gets what was put aside for a person.
    """

    name = "script files"

    def __init__(
        self,
        context: WorkerContext,
        replay_log: ReplayLogWriter,
        *,
        source: ReplayLogReader | None,
        starts: bool,
        tell: Callable[[str], None],
    ) -> None:
        rundir, rank, self.attempt = context.rundir, context.rank, context.attempt
        self.is_replay, self.journal = context.is_experiment, context.journal
        self._is_alone, self._warn = context.place.is_alone, context.warn_aloud
        self.record = ScriptFiles(rundir, rank, context.progress.has_begun, tell)
        self.set_aside = SetAside(rundir, rank)
        self.replayed = ReplayedFiles(self.set_aside, self.record)
        self.as_before = FilesAtArrival(self.replayed)
        self.sizes = FileSizes(
            replay_log,
            rundir.root / f"appended{context.suffix}.json",
            begins_again=context.attempt > 1 and starts,
            source=source,
        )

    def begin_anew(self) -> None:
        """Called before the script of an attempt that goes from no checkpoint. As files that are
        appended to are cut, databases become what they were before the run; what it wrote into
        them is kept. Not where the script has opened one before torch came, nor among several
        ranks, of which another may have opened one by now."""
        databases, aside = self.record.databases, self.set_aside
        if len(databases) and self._is_alone and not self.is_replay:
            try:
                if databases.are_open():
                    raise OSError("the script had one open before it imported torch")
                databases.hide(aside)
            except OSError as error:
                aside.undo()
                self._warn(f"databases hold what earlier attempts wrote into them: {error}")
            if moved := sorted(aside.stored):
                kept = aside.keep_for_a_person(
                    moved, aside.arrived(), f"attempt_{self.attempt - 1}"
                )
                self._warn(f"databases begin as they did; what was written is kept in {kept}")
        self.record.begin_anew()

    def hide_later(self, interval: int, since: float) -> None:
        """Puts the script's files aside: it is to find its folders as it found them first.

        Args:
            interval: of the record in which the checkpoint was made.
            since: time of the checkpoint.

        Raises:
            OSError: not all could be moved; those that were are put back.
        """
        try:
            self.replayed.hide(interval, since)
        except OSError:
            self.set_aside.undo()
            raise

    def training_starts(self) -> None:
        self.replayed.training_begins()

    def save(self, point: SavePoint) -> None:
        point.hold(
            {
                "written": self.replayed.written.checksums(),
                "whole_files": self.replayed.whole.present(),
                "folder_times": self.replayed.folder_times(),
            }
        )

    def before_state(self) -> None:
        self.as_before.restore_in_place()

    def after_state(self, arrived: Arrived) -> list[str]:
        """The files become what they were at the checkpoint.

        Raises:
            OSError: files could not be put back.
        """
        state, files_at_arrival, written = arrived.state, self.as_before, self.replayed.written
        held = state.get("held", {})
        reached = list(Reach(user_frames()))
        mapped = mapped_files(
            p.value for p in reached if p.path in held or isinstance(p.value, mmap.mmap)
        )
        names = files_at_arrival.take_names(arrived.texts)
        saved = names.keys(state.get("written", {}))
        as_before = written.put_back(saved, files_at_arrival.kept_contents())
        files = files_at_arrival.settle(
            f"attempt_{self.attempt}", mapped, as_before, state.get("whole_files")
        )
        if self.is_replay:
            files = replace(files, unknown="")
        if files.later:
            self.journal.write(files.event(arrived.step))
        others = [] if self.is_replay else written.differing(saved, as_before)
        reasons = [f"{os.path.relpath(path)} is not as it was" for path in others[:NAMED_FILES]]
        return reasons + files.problems

    def goes_live(self, arrived: Arrived) -> None:
        """Only now: other ranks wrote into the same folders until they had arrived."""
        self.as_before.put_back_folder_times(arrived.state.get("folder_times", {}))


_LIMIT_S = 10.0
_POLL_S = 0.005
_IDLE = executors._worker.__code__


def wait_for_executors(limit_s: float = _LIMIT_S) -> list[str]:
    """Waits until no thread of an executor works; those that wait for others count as idle.

    Args:
        limit_s: after so many seconds it waits no longer.

    Returns:
        The names of those that still worked then.
    """
    until = time.monotonic() + limit_s
    while busy := _busy():
        if time.monotonic() >= until:
            return busy
        time.sleep(_POLL_S)
    return []


def _busy() -> list[str]:
    frames = sys._current_frames()
    queues = executors._threads_queues
    return [
        thread.name
        for thread, waiting in list(queues.items())
        if thread.is_alive() and not (waiting.empty() and _is_idle(frames.get(thread.ident or 0)))
    ]


def _is_idle(frame: FrameType | None) -> bool:
    """Whether a thread waits: for work, or for another one, perhaps the training."""
    if frame is None or frame.f_code is _IDLE:
        return True
    return frame.f_code.co_filename == threading.__file__
