"""Which checkpoints may be removed, and when the disk needs it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from supervisor.errors import CheckpointError
from supervisor.settings import CheckpointSettings
from supervisor.storage.checkpoints.manifest import Checkpoint
from supervisor.storage.files.file_system import FileSystem


def most_kept(settings: CheckpointSettings) -> int:
    """Returns how many may be on disk at a time: the newest, two that are stable or will be, and
    the one being written."""
    return max(1, settings.keep_last) + 3


def superfluous(
    checkpoints: Sequence[Checkpoint], settings: CheckpointSettings, spoiled: Collection[int]
) -> list[Checkpoint]:
    """Returns those that are not among the newest `keep_last`, the newest stable, or ripening.

    Args:
        checkpoints: all of them, newest step last.
        settings: `keep_last` below 1 counts as 1.
        spoiled: steps that can no longer become stable.
    """
    newest = checkpoints[-max(1, settings.keep_last) :]
    stable = [c for c in checkpoints if c.stable][-1:]
    ripe_next = [ripening(checkpoints, settings, spoiled)]
    return [c for c in checkpoints if c not in newest and c not in stable and c not in ripe_next]


def superfluous_abandoned(
    abandoned: Sequence[Checkpoint], settings: CheckpointSettings
) -> list[Checkpoint]:
    """Returns all but the first and the last state that the newest trouble discarded.

    The first holds the most training that is kept nowhere else. Treatments belong to one trouble if
    each came within `stable_after_steps` of the one before.

    Args:
        abandoned: all of them, in any order.
        settings: for `stable_after_steps`.
    """
    by_time = sorted(abandoned, key=lambda c: c.time)
    first = max(0, len(by_time) - 1)
    while first > 0:
        apart = abs(by_time[first].step - by_time[first - 1].step)
        if apart > settings.stable_after_steps:
            break
        first -= 1
    return by_time[:first] + by_time[first + 1 : -1]


def ripening(
    checkpoints: Sequence[Checkpoint], settings: CheckpointSettings, spoiled: Collection[int]
) -> Checkpoint | None:
    """Returns the checkpoint that will become the next stable one if all goes well.

    It must outlive `keep_last`, or none would ever become stable where checkpoints are frequent.
    One of twice `stable_after_steps` was passed over, and is not waited for.
    """
    last_stable = max((c.step for c in checkpoints if c.stable), default=-1)
    for checkpoint in checkpoints:
        age = checkpoints[-1].step - checkpoint.step
        is_waiting = not checkpoint.stable and checkpoint.step > last_stable
        if is_waiting and checkpoint.step not in spoiled and age <= 2 * settings.stable_after_steps:
            return checkpoint
    return None


GIB = 1024**3
_EARLY = 3
"""Warn at three times `min_free_gib`, or when fewer than three checkpoints still fit."""


class DiskRoom:
    """Knows how much the checkpoints' disk can still take, and removes old ones when it is short.

    `min_free_gib` stays free for the user's own files.
    """

    def __init__(self, folder: Path, settings: CheckpointSettings, disk: FileSystem) -> None:
        self._folder = folder
        self._disk = disk
        self._settings = settings

    def make(
        self,
        remove: Callable[[Checkpoint], None],
        checkpoints: Sequence[Checkpoint],
        is_sound: Callable[[Checkpoint], bool],
        estimated_bytes: int | None = None,
    ) -> None:
        """Removes checkpoints in the given order until another one fits.

        Never removes the newest one that verifies, nor the newest stable one, unless `abandoned`.

        Raises:
            CheckpointError: it still does not fit.
        """
        needed = _size(checkpoints, estimated_bytes) + self._reserve()
        if self._free() >= needed:
            return
        course = [c for c in checkpoints if not c.abandoned]
        by_age = sorted(course, key=lambda c: c.step, reverse=True)
        newest = next((c for c in by_age if is_sound(c)), None)
        stable = next((c for c in by_age if c.stable and is_sound(c)), None)
        for checkpoint in checkpoints:
            if checkpoint is newest or checkpoint is stable:
                continue
            remove(checkpoint)
            if self._free() >= needed:
                return
        raise CheckpointError(
            f"{self._folder}: {_gib(self._free())} are free, but {_gib(needed)} are needed "
            f"({_gib(self._reserve())} of them to stay free): make room on this disk, or lower "
            "checkpoint.min_free_gib"
        )

    def warning(
        self, checkpoints: Sequence[Checkpoint], estimated_bytes: int | None = None
    ) -> str | None:
        """Returns a sentence when space is running out."""
        free = self._free()
        size = _size(checkpoints, estimated_bytes)
        fitting = int(max(0, free - self._reserve()) // size) if size else _EARLY
        if free >= _EARLY * self._reserve() and fitting >= _EARLY:
            return None
        fits = f"; {fitting} more checkpoints of {_gib(size)} fit" if size else ""
        return (
            f"{self._folder}: only {_gib(free)} are free on this disk, of which "
            f"{_gib(self._reserve())} stay free{fits}: make room soon"
        )

    def _free(self) -> int:
        folder = self._folder
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        return self._disk.free_bytes(folder)

    def _reserve(self) -> int:
        return int(self._settings.min_free_gib * GIB)


def _size(checkpoints: Sequence[Checkpoint], estimated_bytes: int | None) -> int:
    if estimated_bytes is not None:
        return estimated_bytes
    return max(checkpoints, key=lambda c: c.step).bytes if checkpoints else 0


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"
