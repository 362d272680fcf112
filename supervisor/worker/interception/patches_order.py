"""Batches in another order or one again, for replays that ask whether the data is to blame."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

from torch.utils.data import dataloader

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
