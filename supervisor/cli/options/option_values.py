"""Types of option values for argparse.

Invalid values are refused here, before anything is opened or created.
"""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path

from supervisor.errors import UsageError


def path(text: str) -> Path:
    """Returns a path; refuses an empty string (often an unset shell variable)."""
    if not text.strip():
        raise ArgumentTypeError("is empty: give a path")
    if "\0" in text:
        raise ArgumentTypeError(f"{text!r}: a path cannot contain a zero byte: give another")
    return Path(text)


def whole(low: int, high: int = 2**31 - 1) -> Callable[[str], int]:
    """Returns the type of whole numbers from `low` to `high`."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise ArgumentTypeError(f"{text[:40]}: give a whole number from {low} to {high}")
        return value

    return read


def seconds(low: float, high: float, unit: str = "seconds") -> Callable[[str], float]:
    """Returns the type of times from `low` to `high` seconds, or another unit."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise ArgumentTypeError(f"{text[:40]}: give {unit} from {low:g} to {high:g}")
        return value

    return read


def days(text: str) -> float:
    """Returns a number of days, a century at most."""
    return seconds(0.0, 36525.0, "days")(text)


def names(text: str) -> tuple[str, ...]:
    """Returns the names in a comma-separated list, which must not be empty."""
    found = tuple(text.replace(",", " ").split())
    if not found:
        raise ArgumentTypeError(f"{text!r}: give at least one name (a,b,c)")
    return found


def check_output(option: str, target: Path, suffixes: tuple[str, ...] = ()) -> None:
    """Checks that `target` can be written, before any work is done.

    Args:
        option: as the user wrote it.
        target: where to; its folder must be there.
        suffixes: allowed endings; empty for any.

    Raises:
        UsageError: a folder, a device, another ending, or no such folder.
    """
    if target.is_dir():
        raise UsageError(f"{option} {target}: is a folder: give a file")
    if target.is_symlink():  # it would be replaced, not followed: /dev/stdout is one
        raise UsageError(f"{option} {target}: is a symbolic link: give the path it leads to")
    if target.exists() and not target.is_file():
        raise UsageError(f"{option} {target}: is not a regular file: give another path")
    if suffixes and target.suffix.lower() not in suffixes:
        wanted = " or ".join(filter(None, (", ".join(suffixes[:-1]), suffixes[-1])))
        raise UsageError(f"{option} {target}: no format is known by its ending: end it in {wanted}")
    if not target.parent.is_dir():
        what = "is not a folder" if target.parent.exists() else "no such folder: make it first"
        raise UsageError(f"{option} {target}: {target.parent}: {what}, or give another path")
