"""The script's own files, in a live run, at a save, in a replay and where it arrives."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass, replace

from supervisor.storage.journal.journal import Journal
from supervisor.storage.run.script_files import ScriptFiles
from supervisor.storage.run.set_aside import SetAside
from supervisor.training_state.census.reach import Reach
from supervisor.worker.core.part import Arrived, Part, SavePoint
from supervisor.worker.ground.user_frames import user_frames
from supervisor.worker.recording.changed_in_place import mapped_files
from supervisor.worker.recording.file_sizes import FileSizes
from supervisor.worker.recording.replayed_files import ReplayedFiles
from supervisor.worker.recording.settled_files import SettledFiles

NAMED_FILES = 3


@dataclass(frozen=True, kw_only=True)
class AttemptFiles(Part):
    """Who is told of the script's files.

    Attributes:
        attempt: of the run.
        is_replay: `explain` replays a copy of the run, without the record of its files.
        sizes: of files that are appended to.
        record: what the script has written, for the next attempt.
        replayed: hides what was written later than the checkpoint.
        settled: makes the files what they were at the checkpoint.
        set_aside: where that is meanwhile.
        journal: gets what was put aside for a person.
    """

    name = "script files"

    attempt: int
    is_replay: bool
    sizes: FileSizes
    record: ScriptFiles
    replayed: ReplayedFiles
    settled: SettledFiles
    set_aside: SetAside
    journal: Journal

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
        self.settled.restore_in_place()

    def after_state(self, arrived: Arrived) -> list[str]:
        """The files become what they were at the checkpoint.

        Raises:
            OSError: files could not be put back.
        """
        state, settled_files, written = arrived.state, self.settled, self.replayed.written
        held = state.get("held", {})
        reached = list(Reach(user_frames()))
        mapped = mapped_files(
            p.value for p in reached if p.path in held or isinstance(p.value, mmap.mmap)
        )
        names = settled_files.take_names(arrived.texts)
        saved = names.keys(state.get("written", {}))
        settled = written.put_back(saved, settled_files.kept_contents())
        files = settled_files.settle(
            f"attempt_{self.attempt}", mapped, settled, state.get("whole_files")
        )
        if self.is_replay:
            files = replace(files, unknown="")
        if files.later:
            self.journal.write(files.event(arrived.step))
        others = [] if self.is_replay else written.differing(saved, settled)
        reasons = [f"{os.path.relpath(path)} is not as it was" for path in others[:NAMED_FILES]]
        return reasons + files.problems

    def goes_live(self, arrived: Arrived) -> None:
        """Only now: other ranks wrote into the same folders until they had arrived."""
        self.settled.put_back_folder_times(arrived.state.get("folder_times", {}))
