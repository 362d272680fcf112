"""How much memory is free, by the host and by each control group above this process."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import psutil

CGROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
STATUS = Path("/proc/self/status")
_NO_LIMIT = 1 << 60
"""Version 1 says 2**63 less a page where there is no limit."""
_FILES = (
    (("memory.max", "memory.high"), "memory.current", "inactive_file"),
    (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"),
)
"""Of versions 2 and 1: limits (from `memory.high` on processes are held up), usage, and what of it
are files read or written once, which the kernel gives back first."""


def free_bytes(root: Path = CGROUPS, own: Path = OWN) -> int:
    """Returns what may still be allocated before the host or a group's limit is met; at least 0."""
    free = int(psutil.virtual_memory().available)
    for limits, usage, inactive in _limiting(root, own):
        limit = min((n for n in map(_number, limits) if n is not None), default=_NO_LIMIT)
        used = _number(usage) if limit < _NO_LIMIT else None
        if used is not None:
            in_files = _entry(usage.with_name("memory.stat"), inactive) or 0
            free = min(free, limit - (used - in_files))
    return max(free, 0)


def taken_at_peak(status: Path = STATUS) -> int:
    """Returns how much more this process has held at its peak than it holds now: between two steps
    activations and gradients are not there, but they come again. 0 if unknown."""
    try:
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        peak, now = (int(lines[name].split()[0]) for name in ("VmHWM", "VmRSS"))
    except (OSError, ValueError, LookupError):
        return 0
    return max(peak - now, 0) * 1024


def count_oom_kills(root: Path = CGROUPS, own: Path = OWN) -> int:
    """Returns the number of out-of-memory kills in this process's control group; 0 if unknown.

    Only its growth during an attempt says something about that attempt.
    """
    for group in _groups(root, own):
        for name in ("memory.events", "memory.oom_control"):
            count = _entry(group / name, "oom_kill")
            if count is not None:
                return count
    return 0


@functools.cache
def _limiting(root: Path, own: Path) -> tuple[tuple[list[Path], Path, str], ...]:
    """The files of the groups that may limit memory; which groups these are does not change."""
    return tuple(
        ([group / name for name in limits], group / usage, inactive)
        for group in _groups(root, own)
        for limits, usage, inactive in _FILES
        if (group / usage).exists()
    )


def _groups(root: Path, own: Path) -> Iterator[Path]:
    """The control groups of this process, each followed by those above it.

    Inside a container its own group is often mounted as the root.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            bases = [root, root / "unified"]
        elif "memory" in controllers.split(","):
            bases = [root / "memory"]
        else:
            continue
        for base in bases:
            group = base / name.lstrip("/")
            while group != base:
                yield group
                group = group.parent
            yield base


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max"
        return None


def _entry(path: Path, wanted: str) -> int | None:
    try:
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == wanted:
                return int(value)
    except (OSError, ValueError):
        pass
    return None
