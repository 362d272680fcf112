"""Batches in another order, for replays that ask whether the data is to blame."""

from __future__ import annotations

import functools
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
