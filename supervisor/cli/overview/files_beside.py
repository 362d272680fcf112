"""The script's own files in a run directory: earlier contents, and files set aside."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.run.set_aside import is_under_way


@dataclass(frozen=True, slots=True)
class FilesBeside:
    """Files below ``RUN/aside`` and ``RUN/files``, without their lists.

    Attributes:
        paths: of files and links.
        bytes: their total size.
        reason: why they are kept; empty if they may be removed.
    """

    paths: tuple[Path, ...] = ()
    bytes: int = 0
    reason: str = ""


def files_beside(rundir: RunDirectory) -> FilesBeside:
    """Returns the files that are there; changes nothing.

    Raises:
        OSError: a folder cannot be read.
    """
    folders = [folder for folder in (rundir.aside, rundir.script_files) if folder.is_dir()]
    for folder in folders:
        if not rundir.holds(folder):
            return FilesBeside(reason=f"{folder}: is a symbolic link that leads out of the run")
    found = [path for folder in folders for path in _inside(folder)]
    paths = tuple(path for path in found if not _is_list(path, folders))
    lists = [path for path in found if path not in paths]
    reason = ""
    if any(is_under_way(path) for path in lists if path.parent == rundir.aside):
        reason = "files of the script are set aside: resume the run to bring them back"
    return FilesBeside(paths, sum(os.lstat(path).st_size for path in paths), reason)


def remove_files(rundir: RunDirectory, beside: FilesBeside) -> None:
    """Removes them, and the folders that become empty.

    Raises:
        OSError: one cannot be removed; others may be removed already.
    """
    for path in beside.paths:
        path.unlink(missing_ok=True)
    for folder in (rundir.aside, rundir.script_files):
        for place, subfolders, _ in os.walk(folder, topdown=False):
            for name in subfolders:
                with contextlib.suppress(OSError):  # something is in it, or it is a link
                    os.rmdir(os.path.join(place, name))


def _inside(folder: Path) -> list[Path]:
    """Files below `folder`; links are listed, not followed."""
    found = []
    for place, subfolders, names in os.walk(folder, onerror=_raise):
        links = [name for name in subfolders if os.path.islink(os.path.join(place, name))]
        found += [Path(place, name) for name in [*names, *links]]
    return sorted(found)


def _raise(error: OSError) -> None:
    raise error


def _is_list(path: Path, folders: list[Path]) -> bool:
    return path.parent in folders and path.suffix == ".jsonl"
