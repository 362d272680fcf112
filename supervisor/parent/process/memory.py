"""Evidence about host memory: the kernel's count of kills, and samples while the worker lives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

_GIB = 2**30
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample:
    """Resident memory of a worker with its descendants, and free memory of the machine, in GiB."""

    resident_gib: float
    available_gib: float

    def __str__(self) -> str:
        return (
            f"last memory sample: {self.resident_gib:.2f} GiB used by the worker, "
            f"{self.available_gib:.2f} GiB available on the host"
        )


def sample_memory(resident_bytes: int) -> MemorySample:
    """Takes a sample."""
    available = psutil.virtual_memory().available
    return MemorySample(resident_gib=resident_bytes / _GIB, available_gib=available / _GIB)


def count_oom_kills(root: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    """Returns the number of out-of-memory kills in this process's control group; 0 if unknown.

    Only its growth during an attempt says something about that attempt.
    """
    for path in _counters(root, own):
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.strip().isdigit():
                return int(value)
    return 0


def _counters(root: Path, own: Path) -> list[Path]:
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    paths = []
    for line in lines:
        _, controllers, group = [*line.split(":", 2), "", ""][:3]
        group = group.lstrip("/")
        if controllers == "":
            paths += [root / group / "memory.events", root / "unified" / group / "memory.events"]
        elif "memory" in controllers.split(","):
            # Inside a container the group's own path is often mounted as the root.
            paths += [root / "memory" / group / "memory.oom_control"]
            paths += [root / "memory" / "memory.oom_control"]
    return paths
