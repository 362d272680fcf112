"""Faults of the disk: one that is full for a while, and one that loses a bit."""

from __future__ import annotations

import resource
from pathlib import Path


class FullDisk:
    """Lets no regular file of this process grow, by RLIMIT_FSIZE: writes fail with EFBIG.

    As on a disk without room nothing can be saved, neither by us nor by the script; pipes and what
    is mapped already still work. Needs no rights, and leaves other processes alone.
    """

    def __init__(self) -> None:
        self._steps_left = 0
        self._before: tuple[int, int] | None = None

    def begin(self, steps: int) -> None:
        """From now on, for so many steps."""
        self._steps_left = steps
        if self._before is None:
            self._before = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, self._before[1]))

    def step_done(self) -> None:
        """Counts steps, and makes room again after the last."""
        if self._before is None:
            return
        self._steps_left -= 1
        if self._steps_left <= 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, self._before)
            self._before = None


def damage_newest_checkpoint(checkpoints: Path) -> None:
    """Flips one bit in the middle of the largest file of the newest checkpoint, if there is one."""
    folders = sorted(path for path in checkpoints.glob("step_*") if path.is_dir())
    if not folders:
        return
    victim = max(
        (path for path in folders[-1].rglob("*") if path.is_file() and path.suffix != ".json"),
        key=lambda path: path.stat().st_size,
        default=None,
    )
    if victim is None:
        return
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
