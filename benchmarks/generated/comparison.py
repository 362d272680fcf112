"""What two runs of one program left: printed lines and files, compared."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

_OURS = ("run", "script.py")


def different_files(one: Path, other: Path) -> list[str]:
    """Returns the names of files that are not the same, the run directory left out."""
    names = sorted(_files(one) | _files(other))
    return [name for name in names if not _same_file(one / name, other / name)]


def same_lines(plain: str, other: str) -> bool:
    """Whether `other` is the plain output, in which kills made lines come twice or end early.

    Behind each kill the lines go on from the checkpoint; the last one before it may be cut.
    """
    lines, told = plain.splitlines(), other.splitlines()
    places = {0}
    for line in told:
        going_on = {n + 1 for n in places if n < len(lines) and lines[n] == line}
        again = {n + 1 for n in range(max(places, default=0)) if lines[n] == line}
        cut = {n for n in places if n < len(lines) and lines[n].startswith(line)}
        places = going_on | again | cut
        if not places:
            return False
    return len(lines) in places


def first_difference(one: Path, other: Path, name: str) -> str:
    """Returns the first line of a text file that differs, of both runs."""
    if not (one / name).exists() or not (other / name).exists():
        return f"{name}: only in {one.name if (one / name).exists() else other.name}"
    first, second = ((p / name).read_bytes().split(b"\n") for p in (one, other))
    for a, b in zip(first, second, strict=False):
        if a != b:
            return f"{name}: {a.decode(errors='replace')} | {b.decode(errors='replace')}"[:300]
    return f"{name}: {len(first)} and {len(second)} lines"


def _files(folder: Path) -> set[str]:
    found = set()
    for top, folders, names in os.walk(folder):
        folders[:] = [f for f in folders if not (f in _OURS and Path(top) == folder)]
        inside = Path(top).relative_to(folder)
        found |= {str(inside / name) for name in [*names, *folders]}
    return found - set(_OURS)


def _same_file(one: Path, other: Path) -> bool:
    if one.is_symlink() or other.is_symlink():
        return one.is_symlink() and other.is_symlink() and os.readlink(one) == os.readlink(other)
    if one.is_dir() or other.is_dir():
        return one.is_dir() and other.is_dir()
    if not (one.exists() and other.exists()):
        return False
    return one.read_bytes() == other.read_bytes() or (
        one.suffix == ".pt" and same_saved(one.read_bytes(), other.read_bytes())
    )


def same_saved(one: bytes, other: bytes) -> bool:
    """Whether two files of `torch.save` hold equal values, in the same order.

    What is equal may be pickled in another way: which of two equal texts are one object.
    """
    loaded = [torch.load(io.BytesIO(data), weights_only=False) for data in (one, other)]
    return _same(loaded[0], loaded[1])


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other) or (one != one and other != other)
