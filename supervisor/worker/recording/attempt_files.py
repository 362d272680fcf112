"""The script's own files, in a live run and in a replay."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.storage.run.script_files import ScriptFiles
from supervisor.storage.run.set_aside import SetAside
from supervisor.worker.recording.file_sizes import FileSizes
from supervisor.worker.recording.replayed_files import ReplayedFiles
from supervisor.worker.recording.settled_files import SettledFiles


@dataclass(frozen=True, kw_only=True)
class AttemptFiles:
    """Who is told of the script's files.

    Attributes:
        sizes: of files that are appended to.
        record: what the script has written, for the next attempt.
        replayed: hides what was written later than the checkpoint.
        settled: makes the files what they were at the checkpoint.
        set_aside: where that is meanwhile.
    """

    sizes: FileSizes
    record: ScriptFiles
    replayed: ReplayedFiles
    settled: SettledFiles
    set_aside: SetAside

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
