"""Writes a checkpoint into a staging folder until all of it is on disk."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

from supervisor.storage.checkpoints.manifest import MANIFEST, Checkpoint, FileSum, to_manifest
from supervisor.storage.files.file_system import FileSystem
from supervisor.storage.files.versions import current_versions


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
