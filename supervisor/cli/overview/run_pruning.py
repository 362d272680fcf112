"""Finds and removes checkpoints and files of ended runs that are no longer needed."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

from supervisor.cli.overview.run_overview import RunOverview, overview
from supervisor.errors import CheckpointError, SupervisorError
from supervisor.events.state_events import WarningEvent
from supervisor.ranks import FIRST_RANK
from supervisor.settings import CheckpointSettings
from supervisor.storage.checkpoints.checkpoints import Checkpoint, CheckpointRing
from supervisor.storage.journal.journal_merger import JournalMerger
from supervisor.storage.run.lease import living_holder, take_lease
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.script_files.set_aside import is_under_way

RESUMABLE = ("interrupted", "gave_up", "failed", "died")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the user wants to remove.

    Attributes:
        older_than_s: only from runs that wrote nothing for this long.
        also_newest: also the checkpoints that a run could be resumed from.
    """

    older_than_s: float = 0.0
    also_newest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """What `supervisor prune` does with one run.

    Attributes:
        path: of its folder.
        state: as `RunOverview.state`.
        steps: of the checkpoints to remove, or removed.
        kept: steps of those kept.
        bytes: size of the former.
        files: the script's own older or set-aside files to remove, or removed.
        file_bytes: their size.
        reason: why some or all are kept.
        deleted: whether they have been removed.
    """

    path: str
    state: str
    steps: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    bytes: int = 0
    files: int = 0
    file_bytes: int = 0
    reason: str = ""
    deleted: bool = False


def plan(path: Path, wish: Wish, *, held: bool = False) -> Pruning:
    """Returns what may be removed from the run at `path`; changes nothing.

    Args:
        path: a run directory.
        wish: what to remove.
        held: this process holds the run's lease, so the lease does not mean that the run is alive.
    """
    rundir, run = RunDirectory(path), overview(path)
    try:
        every = _all(_ring(rundir))
        reason = _why_whole(rundir, run, wish, held=held)
        kept = every
        if not reason:
            kept, reason = _needed(_ring(rundir), run) if not wish.also_newest else ([], "")
        beside = FilesBeside() if reason else files_beside(rundir)
    except (SupervisorError, OSError) as error:
        return Pruning(path=str(path), state=run.state, reason=str(error))
    stays = {checkpoint.step for checkpoint in kept}
    going = [checkpoint for checkpoint in every if checkpoint.step not in stays]
    return Pruning(
        path=str(path),
        state=run.state,
        steps=tuple(checkpoint.step for checkpoint in going),
        kept=tuple(checkpoint.step for checkpoint in every if checkpoint.step in stays),
        bytes=sum(_size(checkpoint.path) for checkpoint in going),
        files=0 if beside.reason else len(beside.paths),
        file_bytes=0 if beside.reason else beside.bytes,
        reason=reason or beside.reason or ("" if every else "no checkpoint"),
    )


def carry_out(path: Path, wish: Wish) -> Pruning:
    """Removes what `plan` returns while holding the lease, so that nobody resumes it meanwhile.

    A run whose lease cannot be taken is left as it is, with the reason."""
    first = plan(path, wish)
    if not first.steps and not first.files:
        return first
    rundir = RunDirectory(path)
    try:
        with take_lease(rundir):
            planned = plan(path, wish, held=True)
            ring = _ring(rundir)
            ring.remove([c for c in _all(ring) if c.step in planned.steps])
            if planned.files:
                remove_files(rundir, files_beside(rundir))
            _note(rundir, planned)
    except (SupervisorError, OSError) as error:
        return _cut_short(first, str(error))
    return replace(planned, deleted=True)


def _cut_short(first: Pruning, error: str) -> Pruning:
    """Corrects the result after a refusal of the disk: only some steps are gone."""
    folders = {step: RunDirectory(first.path).checkpoint(step) for step in first.steps}
    gone = tuple(step for step, folder in folders.items() if not folder.exists())
    left = [step for step in first.steps if step not in gone]
    size = max(0, first.bytes - sum(_size(folders[step]) for step in left))
    kept = tuple(sorted({*first.kept, *left}))
    cut = replace(first, steps=gone, kept=kept, bytes=size, reason=error, deleted=bool(gone))
    try:
        beside = files_beside(RunDirectory(first.path))
    except OSError:  # the first error says enough
        beside = FilesBeside()
    files = max(0, first.files - len(beside.paths))
    file_bytes = max(0, first.file_bytes - beside.bytes)
    return replace(cut, files=files, file_bytes=file_bytes, deleted=bool(gone or files))


def _ring(rundir: RunDirectory) -> CheckpointRing:
    """Raises CheckpointError for checkpoints outside of the run directory."""
    if not rundir.holds(rundir.checkpoints):
        raise CheckpointError(f"{rundir.checkpoints}: is a symbolic link that leads out of the run")
    return CheckpointRing(rundir.checkpoints, CheckpointSettings())


def _all(ring: CheckpointRing) -> list[Checkpoint]:
    return sorted([*ring.checkpoints(), *ring.abandoned()], key=lambda c: c.step)


def _why_whole(rundir: RunDirectory, run: RunOverview, wish: Wish, *, held: bool) -> str:
    """Why nothing of the run may be removed; empty if something may."""
    if run.state == "unreadable":
        return "run.json cannot be read"
    if run.state == "running" or (not held and living_holder(rundir) is not None):
        return "is running"
    if time.time() - _last_written_s(rundir) < wish.older_than_s:
        return "is not old enough"
    return ""


def _needed(ring: CheckpointRing, run: RunOverview) -> tuple[list[Checkpoint], str]:
    """What a resume needs: the newest checkpoint that verifies, and the newest stable one."""
    if run.state not in RESUMABLE and not run.is_sick:
        return [], ""
    found = [ring.newest_verified(), ring.last_stable()]
    if found == [None, None]:  # none that verifies: a person may save something of them
        return _all(ring), "no checkpoint of it verifies"
    return [checkpoint for checkpoint in found if checkpoint is not None], "can be resumed"


def _last_written_s(rundir: RunDirectory) -> float:
    times = []
    for path in (rundir.run_json, rundir.steps(FIRST_RANK)):  # not what `_note` writes
        if path.exists():
            times.append(path.stat().st_mtime)
    return max(times, default=0.0)


def _size(folder: Path) -> int:
    return sum(
        os.lstat(os.path.join(place, name)).st_size
        for place, _, names in os.walk(folder)
        for name in names
    )


def _note(rundir: RunDirectory, planned: Pruning) -> None:
    """Notes the removal in the journal, so that no report suggests resuming from it."""
    gone = []
    if planned.steps:
        gone.append(f"the checkpoints of steps {', '.join(map(str, planned.steps))}")
    if planned.files:
        gone.append(f"{planned.files} files of the script that were set aside or replaced")
    with JournalMerger(rundir) as journal:
        journal.merge()
        told = f"`supervisor prune` deleted {' and '.join(gone)}"
        journal.write(WarningEvent(message=told, pruned=tuple(planned.steps)))


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
