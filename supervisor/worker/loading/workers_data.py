"""The data sets of loader workers that run already where a replay arrives."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from supervisor.training_state.held_values import Stamp, find_held, stamps
from supervisor.worker.loading.fingerprint import is_mapped

_NAMED = 3


class WorkersData:
    """Made before variables are put back. A worker has copied its data set when it was started: in
    a replay, with outputs that no forward calculated. What is put back it does not see."""

    def __init__(self) -> None:
        running = [
            one
            for one in gc.get_objects()
            if issubclass(type(one), _MultiProcessingDataLoaderIter) and not one._shutdown
        ]
        # Not what `collate_fn` leads to: often a trainer with all it has, of which no batch is made.
        self._copied = {
            f"loader_{number}": {"dataset": one._dataset} for number, one in enumerate(running)
        }
        self._before = self._stamps()

    def outdated(self) -> list[str]:
        """Returns what was put back since, as reasons why the resume is not exact."""
        now = self._stamps()
        paths = [path for path, stamp in now.items() if stamp[1:] != self._before.get(path, ())[1:]]
        return [f"a loader's workers still have {path} of the replay" for path in paths[:_NAMED]]

    def _stamps(self) -> dict[str, Stamp]:
        found = find_held(self._copied, set()) if self._copied else {}
        return stamps({path: value for path, value in found.items() if not _is_shared(value)})


def _is_shared(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return is_mapped(value)
    return bool(value.device.type == "cpu" and value.is_shared())
