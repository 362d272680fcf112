"""The script's files once a replay has reached its target.

When folders were last changed: what rotates its checkpoints may delete the oldest by that.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from supervisor.codes import Found
from supervisor.events.state_events import StateFound

TOLD_FILES = 50
"""Files named in the journal; the folder has them all."""


@dataclass(frozen=True, slots=True)
class FilesAtTarget:
    """The script's files that are not as they were at the checkpoint.

    Attributes:
        later: files made or changed after it; their last contents are set aside.
        folder: where those are.
        not_restored: files whose content at the checkpoint is lost.
        unknown: why the record of files is incomplete; empty if it is complete.
        unseen: neighbouring files changed by an unknown writer; left as they were before the
            resume.
    """

    later: list[str]
    folder: str
    not_restored: list[str]
    unknown: str = ""
    unseen: Sequence[str] = ()

    @property
    def problems(self) -> list[str]:
        """Why a resume is not exact; empty if every file is as it was."""
        found = []
        if self.not_restored:
            found.append(f"files that the script has changed since: {_names(self.not_restored)}")
        if self.unknown:
            found.append(f"what became of the script's files is not all known: {self.unknown}")
        if self.unseen:
            found.append(
                "files that changed in a way that was not seen (another program, a library in C), "
                f"and stay as they were last: {_names(self.unseen)}"
            )
        return found

    def event(self, step: int) -> StateFound:
        """Returns the event that tells what was set aside.

        Args:
            step: of the checkpoint.
        """
        count = len(self.later)
        return StateFound(
            step=step,
            found=Found.FILES_SET_ASIDE,
            files=tuple(self.later[:TOLD_FILES]),
            count=count,
            aloud=True,
            message=f"{count} file{'s' if count > 1 else ''} that the script wrote after step "
            f"{step} set aside in {self.folder}: {_names(self.later)}",
        )


def _names(paths: Sequence[str]) -> str:
    shown = [os.path.relpath(path) for path in paths[:3]]
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return ", ".join(shown) + more


FOLDERS = 2_000
"""The newest that are looked at."""


def folder_times(folders: Iterable[str]) -> dict[str, int]:
    """Returns path → time in nanoseconds of those that exist.

    Args:
        folders: absolute paths, the newest last.
    """
    found = {}
    for path in list(folders)[-FOLDERS:]:
        with contextlib.suppress(OSError):
            found[path] = os.stat(path).st_mtime_ns
    return found


def put_back_folder_times(times: Mapping[str, int]) -> None:
    """Gives folders the times that they had; called when nothing is moved in them any more."""
    for path, then in times.items():
        with contextlib.suppress(OSError):
            os.utime(path, ns=(os.stat(path).st_atime_ns, then))
