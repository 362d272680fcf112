"""Checkpoints of several ranks: each writes its part, the first one joins them to a checkpoint.

A part is a folder beside the checkpoints, whole when it has its name. The first rank moves all
parts of a step into the checkpoint that it is staging, as ``rank_<r>/``, and publishes that with
one rename, so a process killed at any moment leaves the older *common* checkpoint. A rank that
cannot write, or must not, says so beside it (`call_off`): nobody waits for it then.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from supervisor.errors import CheckpointDamaged, CheckpointError
from supervisor.ranks import FIRST_RANK
from supervisor.storage.checkpoints.checkpoint_files import stage
from supervisor.storage.checkpoints.manifest import (
    MANIFEST,
    Checkpoint,
    FileSum,
    folder_name,
    from_manifest,
)
from supervisor.storage.files import file_system as aside
from supervisor.storage.files.file_system import FileSystem
from supervisor.storage.files.private_files import make_private

RANKS = "ranks"
"""Of a manifest's meta: rank → that rank's own meta, of all but the first."""
REFUSED = "refused"
"""Of a part's meta: why this rank's state must not be saved."""

_OFF = "-off"
_EVERY_STEP = 99_999_999
"""Beyond all that are trained, so that it goes with the attempt (`remove_parts`)."""
_NAME = re.compile(rf"\.part-(\d+)-(\d+)-(\d+)(?:{_OFF}\d+)?")


def part_path(folder: Path, step: int, attempt: int, rank: int) -> Path:
    """Returns where the part of a rank lies until the first rank takes it."""
    return folder / f".part-{step:08d}-{attempt}-{rank}"


def call_off(disk: FileSystem, part: Path, save: int) -> None:
    """Says that a rank does not save this step, so that the others do not wait for its part.

    An empty folder: of a disk that is full there is mostly room for one. Where there is not, the
    others wait as long as for a slow rank.

    Args:
        disk: what it is written with.
        part: where the rank's part would lie.
        save: counts the saves of the attempt: a step may be saved again after a rollback.
    """
    with contextlib.suppress(OSError):
        disk.make_folder(_off(part, save))


def is_called_off(part: Path, save: int) -> bool:
    """Returns whether the rank whose part would lie there has said that it does not save it."""
    return _off(part, save).is_dir()


def call_all_off(disk: FileSystem, folder: Path, attempt: int, rank: int) -> None:
    """Says that a rank saves nothing any more in this attempt: nobody waits for its parts."""
    call_off(disk, part_path(folder, _EVERY_STEP, attempt, rank), 0)


def is_all_called_off(folder: Path, attempt: int, rank: int) -> bool:
    """Returns whether the rank has said that it saves nothing any more."""
    return is_called_off(part_path(folder, _EVERY_STEP, attempt, rank), 0)


def _off(part: Path, save: int) -> Path:
    return part.with_name(f"{part.name}{_OFF}{save}")


def rank_folder(rank: int) -> str:
    """Returns the name of a rank's folder within a checkpoint."""
    return f"rank_{rank}"


def ranks_of(checkpoint: Checkpoint) -> int:
    """Returns how many ranks saved it."""
    others = checkpoint.meta.get(RANKS)
    return 1 if others is None else 1 + len(others)


def metas_of(checkpoint: Checkpoint) -> dict[int, Mapping[str, Any]]:
    """Returns what each rank has told of its part: rank → meta."""
    others = checkpoint.meta.get(RANKS) or {}
    return {FIRST_RANK: checkpoint.meta, **{int(rank): meta for rank, meta in others.items()}}


def part_of(checkpoint: Checkpoint, rank: int, world_size: int) -> Checkpoint:
    """Returns what a rank reads of a checkpoint: with its own folder and meta.

    Raises:
        CheckpointError: it was saved by another number of ranks.
    """
    others, saved_by = checkpoint.meta.get(RANKS), ranks_of(checkpoint)
    if saved_by != world_size:
        raise CheckpointError(
            f"{checkpoint.path}: saved by {_ranks(saved_by)}, and {_ranks(world_size)} are to go "
            "on: start as many as before"
        )
    if others is None:
        return checkpoint
    meta = checkpoint.meta if rank == FIRST_RANK else others[str(rank)]
    return dataclasses.replace(checkpoint, path=checkpoint.path / rank_folder(rank), meta=meta)


def publish_part(
    disk: FileSystem,
    folder: Path,
    planned: Checkpoint,
    place: tuple[int, int],
    write: Callable[[Path], None],
) -> Path:
    """Writes a rank's part, durably; returns its folder.

    Args:
        disk: what it is written with.
        folder: of the checkpoints.
        planned: the part's step and meta.
        place: number of the attempt, and the rank.
        write: fills the folder that it is called with.

    Raises:
        OSError: the disk refuses; nothing is left.
    """
    if not folder.is_dir():
        make_private(folder)
    staged = aside.aside_path(folder, aside.STAGED, planned.step)
    target = part_path(folder, planned.step, *place)
    try:
        stage(disk, staged, planned, write)
        with contextlib.suppress(OSError):
            disk.remove_tree(target)
        disk.replace(staged, target)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.remove_tree(staged)
        raise
    disk.sync_folder(folder)
    return target


def read_part(disk: FileSystem, path: Path, step: int) -> Checkpoint | None:
    """Returns what a part holds; None while it is not there.

    Raises:
        CheckpointDamaged: it is something else.
    """
    try:
        data = disk.read(path / MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        return None
    part = from_manifest(path.with_name(folder_name(step)), data)
    if part.step != step:
        raise CheckpointDamaged(f"{path}: is the part of step {part.step}")
    return dataclasses.replace(part, path=path)


def take_part(disk: FileSystem, part: Checkpoint, target: Path) -> Mapping[str, FileSum]:
    """Moves a part's files to `target`, a rank's folder of a checkpoint that is being staged.

    The part's own folder stays, until `remove_parts` tells its rank that this save is over.

    Returns:
        Its files as the checkpoint's manifest names them.

    Raises:
        OSError: the disk refuses.
    """
    disk.make_folder(target)
    for name in disk.names(part.path):
        if name != MANIFEST:
            disk.replace(part.path / name, target / name)
    disk.sync_folder(target)
    return {f"{target.name}/{name}": file for name, file in part.files.items()}


def remove_parts(disk: FileSystem, folder: Path, goes: Callable[[int, int], bool]) -> None:
    """Removes the parts whose step and attempt `goes` selects; what cannot be removed stays."""
    with contextlib.suppress(OSError):
        for name in disk.names(folder):
            match = _NAME.fullmatch(name)
            if match and goes(int(match[1]), int(match[2])):
                with contextlib.suppress(OSError):
                    disk.remove_tree(folder / name)


def refusal_of(part: Checkpoint) -> str:
    """Returns why a rank does not want its state saved; empty if it does."""
    found: Any = part.meta.get(REFUSED, "")
    return str(found)


def _ranks(number: int) -> str:
    return "one rank" if number == 1 else f"{number} ranks"
