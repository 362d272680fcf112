"""The files of one checkpoint: written into a staging folder, read back and checked.

Named JSON files of a checkpoint beside the training's state: ``pipeline.json`` and others.

They are not part of the manifest because that is read and rewritten often, and the pipeline's
windows alone are some 70 KB.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from supervisor.errors import CheckpointDamaged
from supervisor.storage.checkpoints.manifest import (
    MANIFEST,
    Checkpoint,
    FileSum,
    from_manifest,
    step_of,
    to_manifest,
)
from supervisor.storage.files.file_system import FileSystem
from supervisor.storage.files.private_files import write_private
from supervisor.storage.run.run_state import current_versions

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


def stage(
    disk: FileSystem,
    folder: Path,
    planned: Checkpoint,
    write: Callable[[Path], Mapping[str, FileSum] | None],
) -> Checkpoint:
    """Makes `folder`, lets `write` fill it, and adds checksums and the manifest.

    All of it is on disk when this returns, except the folder's own name in its parent. `write` may
    return the checksums of files that are on disk already.

    Returns:
        `planned` with the files and versions that the manifest names.

    Raises:
        OSError: the disk refuses; the folder is left incomplete.
    """
    disk.make_folder(folder)
    known = write(folder) or {}
    files: dict[str, FileSum] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            disk.sync_folder(path)
            continue
        name = path.relative_to(folder).as_posix()
        if name not in known:
            disk.sync_file(path)
            files[name] = FileSum(bytes=disk.size(path), xxh3=disk.checksum(path))
    files.update(known)
    checkpoint = dataclasses.replace(
        planned,
        bytes=sum(file.bytes for file in files.values()),
        files=files,
        versions=current_versions(),
    )
    disk.write(folder / MANIFEST, to_manifest(checkpoint))
    disk.sync_file(folder / MANIFEST)
    disk.sync_folder(folder)
    return checkpoint


PIPELINE = "pipeline"
"""The state of detectors, predictor and ladder."""


def section_file(name: str) -> str:
    """Returns the name of a section's file within a checkpoint's folder."""
    return f"{name}.json"


def write_section(folder: Path, name: str, content: Mapping[str, Any]) -> None:
    """Writes a section into a checkpoint that is being filled.

    Raises:
        OSError: the disk refuses.
    """
    write_private(folder / section_file(name), json.dumps(content))


def read_section(folder: Path, name: str) -> dict[str, Any] | None:
    """Returns what `write_section` wrote into a verified checkpoint; None if it was left out.

    Raises:
        OSError: the disk refuses.
    """
    path = folder / section_file(name)
    if not path.exists():
        return None
    content: dict[str, Any] = json.loads(path.read_bytes())
    return content
