"""The patches of an experiment: batches in another order, writes that reach no file, moments of a
backward.

Keeps what a script writes in a replay away from its real files.

A replay is a second performance of a run that has ended: it must not truncate the run's logs or
replace its results. What is written goes into the replay's own directory, and is read from there.
"""

from __future__ import annotations

import builtins
import copy
import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import dataloader

from supervisor.storage.files.private_files import make_private
from supervisor.worker.outside_draws.patches_draws import replace_open

GROUP = 16
"""Batches drawn ahead; each moves by half of it: clear of a crash that shifts by a step or two."""


def hand_out_in_other_order() -> None:
    """From now on every loader's batches come with the halves of each group exchanged.

    Called once in a process that exists for one replay.
    """
    loader_iterator = dataloader._BaseDataLoaderIter
    original = loader_iterator.__next__
    ahead: dict[int, tuple[Any, list[Any]]] = {}

    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        # The iterator is kept with its batches, so that its id is not given to another one.
        _, batches = ahead.setdefault(id(self), (self, []))
        if not batches:
            for _ in range(GROUP):
                try:
                    batches.append(original(self))
                except StopIteration:
                    break
            middle = (len(batches) + 1) // 2
            batches[:] = [*batches[middle:], *batches[:middle]]
        if not batches:
            ahead.pop(id(self), None)
            raise StopIteration
        return batches.pop(0)

    loader_iterator.__next__ = __next__  # type: ignore[method-assign]


def keep_the_last_batch() -> Callable[[], None]:
    """Keeps each loader's last batch; returns what makes loaders hand it out again for good.

    Called once in a process that exists for one replay. As many batches are drawn as without it.
    """
    loader_iterator = dataloader._BaseDataLoaderIter
    original = loader_iterator.__next__
    kept: dict[int, tuple[Any, Any]] = {}  # data set and batch, so that its id is its own
    repeats = False

    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        batch = original(self)
        loader = id(self._dataset)
        if not repeats or loader not in kept:
            kept[loader] = self._dataset, copy.deepcopy(batch)
        return copy.deepcopy(kept[loader][1])

    def repeat() -> None:
        nonlocal repeats
        repeats = True

    loader_iterator.__next__ = __next__  # type: ignore[method-assign]
    return repeat


def keep_writes_apart(root: Path) -> None:
    """Patches `open`, `torch.save` and `torch.load` for the rest of this process's life.

    Other ways to change files (``os.remove``, a library's own C code) are not seen.

    Args:
        root: the replay's directory; what is written below it goes there as it is.
    """
    apart = _Apart(root)
    _patch_open(apart)
    _patch_torch(apart)


class _Apart:
    """Where the private copy of each file that was written is."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._folder = root / "written"
        self._copies: dict[str, str] = {}

    def to_write(self, path: Any, *, keep: bool) -> Any:
        """Returns the path to write to; with `keep` what the file holds is there, too."""
        name = self._name(path)
        if name is None:
            return path
        if name not in self._copies:
            make_private(self._folder)
            copy = self._folder / f"{len(self._copies)}_{os.path.basename(name)[-100:]}"
            if keep and os.path.isfile(name):
                shutil.copyfile(name, copy)
            self._copies[name] = str(copy)
        return self._copies[name]

    def to_read(self, path: Any) -> Any:
        name = self._name(path)
        return path if name is None else self._copies.get(name, path)

    def _name(self, path: Any) -> str | None:
        """Returns the real path of a file of the user's; None for anything else."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return None
        name = os.path.realpath(os.fsdecode(path))
        is_ours = name == self._root or name.startswith(self._root + os.sep)
        return None if is_ours or name.startswith(("/dev/", "/proc/")) else name


def _patch_open(apart: _Apart) -> None:
    original = builtins.open

    @functools.wraps(original)
    def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(mode, str) and set(mode) & set("wax+"):
            file = apart.to_write(file, keep="w" not in mode)
            mode = mode.replace("x", "w")
        else:
            file = apart.to_read(file)
        return original(file, mode, *args, **kwargs)

    replace_open(open_)


def _patch_torch(apart: _Apart) -> None:
    save, load = torch.save, torch.load

    @functools.wraps(save)
    def save_apart(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        return save(obj, apart.to_write(f, keep=False), *args, **kwargs)

    @functools.wraps(load)
    def load_apart(f: Any, *args: Any, **kwargs: Any) -> Any:
        return load(apart.to_read(f), *args, **kwargs)

    torch.save = save_apart
    torch.load = load_apart


def hand_over_backward(
    before: Callable[[Any], None], after: Callable[[], None]
) -> Callable[[], None]:
    """Calls `before` with the roots of each backward pass, and `after` when it is over.

    Returns:
        What takes the patch off again.
    """
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        before(tensors)
        try:
            return original(tensors, *args, **kwargs)
        finally:
            after()

    def take_off() -> None:
        torch.autograd.backward = original

    torch.autograd.backward = backward
    return take_off
