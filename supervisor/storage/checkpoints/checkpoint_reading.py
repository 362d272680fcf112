"""Reads checkpoints back and checks everything: the last guard before a state is loaded."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

from supervisor.errors import CheckpointDamaged
from supervisor.storage.checkpoints.manifest import MANIFEST, Checkpoint, from_manifest, step_of
from supervisor.storage.files.file_system import FileSystem

_HELP = "use an older checkpoint, and check this disk and its memory"


def is_folder(path: Path) -> bool:
    """Whether `path` is a real folder; links are not ours."""
    return path.is_dir() and not path.is_symlink()


def find_checkpoints(file_system: FileSystem, folder: Path) -> list[Path]:
    """Returns the folders in `folder` that are named as checkpoints, newest step last."""
    names = [name for name in file_system.names(folder) if step_of(name) is not None]
    names.sort(key=lambda name: step_of(name) or 0)
    return [folder / name for name in names if is_folder(folder / name)]


def read_manifest(file_system: FileSystem, path: Path) -> Checkpoint:
    """Returns the checkpoint in the folder `path`; checks its manifest only.

    Raises:
        CheckpointDamaged: there is no manifest, or not the one that was written.
        OSError: the disk refuses.
    """
    try:
        data = file_system.read(path / MANIFEST)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise CheckpointDamaged(
            f"{path}: no {MANIFEST}, so damaged or not a checkpoint of ours: {_HELP}"
        ) from None
    except OSError as error:
        _raise_refusal(path / MANIFEST, error)
    return from_manifest(path, data)


def verify(file_system: FileSystem, path: Path, *, fresh: bool = False) -> Checkpoint:
    """Returns the checkpoint in the folder `path` after reading every file of it.

    Files that the manifest does not name are not looked at: nothing loads them.

    Raises:
        CheckpointDamaged: something is missing or different; says what.
        OSError: the disk refuses otherwise.
    """
    checkpoint = read_manifest(file_system, path)
    for name, expected in checkpoint.files.items():
        file = path / name
        if os.path.isabs(name) or ".." in Path(name).parts or file.is_symlink():
            raise CheckpointDamaged(f"{path}: {name!r} leads out of its folder: {_HELP}")
        try:
            size = file_system.size(file)
            if size != expected.bytes:
                raise CheckpointDamaged(
                    f"{file}: {size} bytes instead of {expected.bytes}: {_HELP}"
                )
            if file_system.checksum(file, fresh=fresh) != expected.xxh3:
                raise CheckpointDamaged(
                    f"{file}: its checksum is wrong, bits have changed: {_HELP}"
                )
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise CheckpointDamaged(f"{file}: missing: {_HELP}") from None
        except OSError as error:
            _raise_refusal(file, error)
    return checkpoint


def _raise_refusal(file: Path, error: OSError) -> NoReturn:
    """Distinguishes a bad block from a disk that is gone or refuses access."""
    if error.errno != errno.EIO:
        raise error
    raise CheckpointDamaged(f"{file}: the disk cannot read it: {_HELP}") from error
