"""Where a training of a benchmark notes that its fault has struck.

A fault is met once: not again by a process that starts over. The note lies outside of any folder
that a resume puts back to what it was.
"""

from __future__ import annotations

from pathlib import Path

_MEMORY = Path("/dev/shm")


def mark_of(folder: Path) -> Path:
    """Returns the file that is there once the fault has struck; who made `folder` removes it."""
    name = "-".join(("struck", *folder.resolve().parts[1:]))
    return _MEMORY / name if _MEMORY.is_dir() else folder / name
