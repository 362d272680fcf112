"""Writes a checkpoint into a staging folder until all of it is on disk."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from supervisor.storage.checkpoints.manifest import MANIFEST, Checkpoint, FileSum, to_manifest
from supervisor.storage.files.file_system import FileSystem
from supervisor.storage.files.versions import current_versions


def stage(
    disk: FileSystem, folder: Path, planned: Checkpoint, write: Callable[[Path], None]
) -> Checkpoint:
    """Makes `folder`, lets `write` fill it, and adds checksums and the manifest.

    All of it is on disk when this returns, except the folder's own name in its parent.

    Returns:
        `planned` with the files and versions that the manifest names.

    Raises:
        OSError: the disk refuses; the folder is left incomplete.
    """
    disk.make_folder(folder)
    write(folder)
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            disk.sync_folder(path)
            continue
        disk.sync_file(path)
        files[path.relative_to(folder).as_posix()] = FileSum(
            bytes=disk.size(path), xxh3=disk.checksum(path)
        )
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
