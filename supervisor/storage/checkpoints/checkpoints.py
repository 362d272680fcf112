"""Durable checkpoints: complete or absent, verified before use, the newest stable one never lost.

A checkpoint is written into a staging folder, flushed, given its manifest, and only then renamed to
``step_<8 digits>``. A process may be killed between any two operations: what it leaves behind is
not a checkpoint, and is swept away later. Torch reads the state files without this package.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from supervisor.errors import CheckpointDamaged, CheckpointError
from supervisor.settings import CheckpointSettings
from supervisor.storage.checkpoints.checkpoint_files import (
    find_checkpoints,
    is_folder,
    read_manifest,
    stage,
    verify,
)
from supervisor.storage.checkpoints.manifest import (
    MANIFEST,
    Checkpoint,
    FileSum,
    folder_name,
    step_of,
    to_manifest,
)
from supervisor.storage.checkpoints.retention import (
    DiskRoom,
    ripening,
    superfluous,
    superfluous_abandoned,
)
from supervisor.storage.files import file_system as aside
from supervisor.storage.files.file_system import FileSystem
from supervisor.storage.files.private_files import make_private, told_refusals

__all__ = ["Checkpoint", "CheckpointRing", "FileSum", "FileSystem", "OnRejected"]

OnRejected = Callable[[Checkpoint, str], None]
"""Called with each checkpoint that must not be loaded, and the reason."""


class CheckpointRing:
    """The checkpoints of a run. One process saves, any may read; it is thread-safe.

    Methods raise `CheckpointError` when the disk refuses; existing checkpoints are never lost.
    """

    def __init__(
        self,
        folder: Path,
        settings: CheckpointSettings,
        *,
        file_system: FileSystem | None = None,
        on_rejected: OnRejected | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder = folder
        self.on_rejected = on_rejected
        self._settings = settings
        self.disk = self._disk = file_system or FileSystem()
        self._room = DiskRoom(folder, settings, self._disk)
        self._clock = clock
        self._lock = threading.RLock()
        self._spoiled: set[int] = set()

    def save(
        self,
        step: int,
        write: Callable[[Path], Mapping[str, FileSum] | None],
        *,
        reason: str,
        meta: Mapping[str, Any],
        estimated_bytes: int | None = None,
        abandoned: bool = False,
    ) -> Checkpoint:
        """Saves what `write` puts into the folder that it is called with, durably.

        A checkpoint of this step that verifies is returned as it is; a damaged one is put aside,
        and an abandoned one makes way.

        Args:
            step: the step after which the state was taken.
            write: fills an empty folder; its exceptions pass through, except OSError. See `stage`.
            reason: why now.
            meta: JSON-serialisable; comes back in `Checkpoint.meta`.
            estimated_bytes: size to make room for; by default that of the newest checkpoint.
            abandoned: see `Checkpoint.abandoned`; it does not count against `keep_last`.

        Raises:
            CheckpointError: no room, a read-only disk, or any other refusal of the disk.
        """
        target = self.folder / folder_name(step)
        with self._lock, told_refusals(target):
            existing = self._sound(target)
            if existing is not None and not existing.abandoned:
                return existing
            self._prepare_folder()
            self._make_room(estimated_bytes, for_abandoned=abandoned)
            staged = aside.aside_path(self.folder, aside.STAGED, step)
            now = self._clock()
            planned = Checkpoint(
                step=step, path=staged, reason=reason, time=now, meta=meta, abandoned=abandoned
            )
            try:
                checkpoint = stage(self._disk, staged, planned, write)
                if existing is not None:
                    self._remove(existing)
                self._publish(staged, target)
            except Exception:
                with contextlib.suppress(OSError):
                    self._disk.remove_tree(staged)
                raise
            self._disk.sync_folder(self.folder)
            self._spoiled.discard(step)
            with contextlib.suppress(CheckpointError):  # the next save tries again
                self.retain()
            return dataclasses.replace(checkpoint, path=target)

    def aside(
        self, step: int, needed_bytes: int | None = None, *, for_abandoned: bool = False
    ) -> Path:
        """Makes a hidden folder for what will soon be saved, and is the caller's until then.

        `needed_bytes`: room is made for so much. A process that dies leaves it to `sweep`.
        """
        with self._lock, told_refusals(self.folder):
            self._prepare_folder()
            if needed_bytes is not None:
                self._make_room(needed_bytes, for_abandoned=for_abandoned)
            folder = aside.aside_path(self.folder, aside.STAGED, step)
            self._disk.make_folder(folder)
            return folder

    def checkpoints(self) -> list[Checkpoint]:
        """Returns the checkpoints with a readable manifest, newest last, abandoned ones left out.

        Their files are not checked.
        """
        return [checkpoint for checkpoint in self._all() if not checkpoint.abandoned]

    def abandoned(self) -> list[Checkpoint]:
        """Returns the states kept for a person, newest step last; the files are not checked."""
        return [checkpoint for checkpoint in self._all() if checkpoint.abandoned]

    def _all(self) -> list[Checkpoint]:
        found = []
        with told_refusals(self.folder):
            for path in find_checkpoints(self._disk, self.folder):
                with contextlib.suppress(CheckpointDamaged, OSError):
                    found.append(read_manifest(self._disk, path))
        return found

    def verify(self, checkpoint: Checkpoint) -> None:
        """Reads everything back and compares it with the manifest on disk.

        Raises:
            CheckpointDamaged: it must not be loaded; says where and why, and what to do.
        """
        with told_refusals(checkpoint.path):
            verify(self._disk, checkpoint.path)

    def newest_verified(self, before_step: int | None = None) -> Checkpoint | None:
        """Returns the newest checkpoint before `before_step` that verifies.

        Damaged ones are reported to `on_rejected`.
        """
        with told_refusals(self.folder):
            return self._newest(before_step, stable=False)

    def last_stable(self, before_step: int | None = None) -> Checkpoint | None:
        """Returns the newest stable checkpoint before `before_step` that verifies."""
        with told_refusals(self.folder):
            return self._newest(before_step, stable=True)

    def get(self, step: int) -> Checkpoint:
        """Returns the verified checkpoint of a step.

        Raises:
            CheckpointDamaged: it is damaged.
            CheckpointError: there is none; the message lists the existing ones.
        """
        with told_refusals(self.folder):
            return verify(self._disk, self._known(step))

    def mark_stable(self, step: int) -> Checkpoint:
        """Marks a checkpoint stable, after reading it back from disk.

        The caller must have seen that its state is finite and that healthy steps followed.

        Raises:
            CheckpointDamaged: its content has changed since it was written.
            CheckpointError: there is none of this step, it was abandoned, or the disk refuses.
        """
        path = self.folder / folder_name(step)
        with self._lock, told_refusals(path):
            checkpoint = verify(self._disk, self._known(step), fresh=True)
            if checkpoint.abandoned:
                raise CheckpointError(f"{path}: was abandoned, so it cannot be stable")
            if checkpoint.stable:
                return checkpoint
            return self._rewrite(dataclasses.replace(checkpoint, stable=True))

    def adopt(self, step: int) -> None:
        """Takes back that `step` was abandoned: an attempt starts from it."""
        with self._lock, told_refusals(self.folder):
            for checkpoint in self.abandoned():
                if checkpoint.step == step:
                    self._rewrite(dataclasses.replace(checkpoint, abandoned=False))

    def leave_course(self, step: int) -> None:
        """Notes that the run continues from `step`, where its replay log now ends.

        A resume from a later, abandoned checkpoint can only be approximate (`replay_offset` -1).
        """
        with self._lock, told_refusals(self.folder):
            for checkpoint in self.abandoned():
                if checkpoint.step > step and checkpoint.meta.get("tape_offset", -1) != -1:
                    meta = {**checkpoint.meta, "tape_offset": -1}
                    self._rewrite(dataclasses.replace(checkpoint, meta=meta))

    def _rewrite(self, checkpoint: Checkpoint) -> Checkpoint:
        """Replaces a checkpoint's manifest atomically."""
        path = self.folder / folder_name(checkpoint.step)
        staged = path / f".{MANIFEST}.staged"
        self._disk.write(staged, to_manifest(checkpoint))
        self._disk.sync_file(staged)
        self._disk.replace(staged, path / MANIFEST)
        self._disk.sync_folder(path)
        return checkpoint

    def spoil(self, step: int) -> None:
        """Notes that the checkpoint of `step` can never become stable: trouble followed it.

        It stays only while it is among the newest.
        """
        with self._lock:
            self._spoiled.add(step)

    def discard_after(self, step: int) -> list[Checkpoint]:
        """Removes the checkpoints of later steps, except abandoned ones, and returns them.

        Without this, `save` would take them for its own when the new attempt reaches their steps.
        """
        with self._lock, told_refusals(self.folder):
            later = [c for c in self.checkpoints() if c.step > step]
            for checkpoint in reversed(later):
                self._remove(checkpoint)
            return later

    def remove(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Removes the given checkpoints; an interruption leaves each complete or gone."""
        with self._lock, told_refusals(self.folder):
            for checkpoint in checkpoints:
                self._remove(checkpoint)

    def retain(self) -> None:
        """Removes what is not worth keeping.

        Kept: the newest `keep_last`, the newest stable one, the next one to become stable, the last
        damaged one, and what `superfluous_abandoned` leaves.
        """
        with self._lock, told_refusals(self.folder):
            found = self.checkpoints()
            old = superfluous(found, self._settings, self._spoiled)
            if any(c.stable for c in old):
                # If it was damaged since it was marked, an older one is the newest stable one.
                stable = [c for c in reversed(found) if c.stable]
                sound = next((c for c in stable if self._is_sound(c)), None)
                old = [c for c in old if c is not sound]
            for checkpoint in [*old, *superfluous_abandoned(self.abandoned(), self._settings)]:
                self._remove(checkpoint)
            for path in self._aside(aside.DAMAGED)[:-1]:
                self._disk.remove_tree(path)

    def sweep(self) -> int:
        """Removes what dead processes left half-written or half-removed; returns how many."""
        with self._lock, told_refusals(self.folder):
            staged = [
                path for path in self._aside(aside.STAGED) if aside.is_left_over(self._disk, path)
            ]
            left_over = staged + self._aside(aside.REMOVED)
            for path in left_over:
                self._disk.remove_tree(path)
            return len(left_over)

    def room_warning(self, estimated_bytes: int | None = None) -> str | None:
        """Returns a sentence if the disk will soon be full, else None."""
        with told_refusals(self.folder):
            return self._room.warning(self.checkpoints(), estimated_bytes)

    def _known(self, step: int) -> Path:
        path = self.folder / folder_name(step)
        if not is_folder(path):
            known = ", ".join(str(c.step) for c in self._all()) or "none"
            raise CheckpointError(
                f"{self.folder}: no checkpoint of step {step}: choose one of these steps: {known}"
            )
        return path

    def _prepare_folder(self) -> None:
        if not is_folder(self.folder):
            make_private(self.folder.parent)
            self._disk.make_folder(self.folder)
            self._disk.sync_folder(self.folder.parent)
        with contextlib.suppress(CheckpointError):  # left-overs cost room, no more
            self.sweep()

    def _make_room(self, estimated_bytes: int | None, *, for_abandoned: bool) -> None:
        found = [] if for_abandoned else self.checkpoints()
        ripe_next = ripening(found, self._settings, self._spoiled)
        found.sort(key=lambda c: (c.stable, c is ripe_next, c.step))
        found = [*self.abandoned(), *found]
        self._room.make(self._remove, found, self._is_sound, estimated_bytes)

    def _publish(self, staged: Path, target: Path) -> None:
        """Gives the staged folder its final name; a damaged one of that name is put aside."""
        if is_folder(target):
            damaged = aside.aside_path(self.folder, aside.DAMAGED, step_of(target.name) or 0)
            self._disk.replace(target, damaged)
        self._disk.replace(staged, target)

    def _newest(self, before_step: int | None, *, stable: bool) -> Checkpoint | None:
        for path in reversed(find_checkpoints(self._disk, self.folder)):
            step = step_of(path.name) or 0
            if before_step is not None and step >= before_step:
                continue
            checkpoint = Checkpoint(step=step, path=path)
            try:
                checkpoint = read_manifest(self._disk, path)
                if checkpoint.abandoned or (stable and not checkpoint.stable):
                    continue
                return verify(self._disk, path)
            except (CheckpointDamaged, OSError) as error:
                if self.on_rejected is not None:
                    self.on_rejected(checkpoint, str(error))
        return None

    def _sound(self, path: Path) -> Checkpoint | None:
        with contextlib.suppress(CheckpointDamaged):
            if is_folder(path):
                return verify(self._disk, path)
        return None

    def _is_sound(self, checkpoint: Checkpoint) -> bool:
        return self._sound(checkpoint.path) is not None

    def _remove(self, checkpoint: Checkpoint) -> None:
        """Renames it first: a half-removed checkpoint would look damaged."""
        removed = aside.aside_path(self.folder, aside.REMOVED, checkpoint.step)
        self._disk.replace(checkpoint.path, removed)
        self._disk.remove_tree(removed)

    def _aside(self, kind: str) -> list[Path]:
        names = self._disk.names(self.folder)
        return [self.folder / name for name in names if aside.kind_of(name) == kind]
