"""The data sets of loader workers that run already where a replay arrives."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from supervisor.training_state.held_values import Stamp, find_held, stamps
from supervisor.worker.loading.fingerprint import is_mapped


class WorkersData:
    """Made before variables are put back. A worker has copied its data set when it was started: in
    a replay, with outputs that no forward calculated. What is put back it does not see."""

    def __init__(self) -> None:
        # Not what `collate_fn` leads to, often a whole trainer: no batch is made of it.
        self._running = {f"loader_{number}": one for number, one in enumerate(_running())}
        self._before = self._stamps()

    def outdated(self) -> dict[str, Any]:
        """Returns path → iterator of what was put back since."""
        return {
            path: self._running[path.partition(".")[0]]
            for path, stamp in self._stamps().items()
            if stamp[1:] != self._before.get(path, ())[1:]
        }

    def _stamps(self) -> dict[str, Stamp]:
        data = {name: {"dataset": one._dataset} for name, one in self._running.items()}
        found = find_held(data, set()) if data else {}
        return stamps({path: value for path, value in found.items() if not _is_shared(value)})


def _running() -> list[Any]:
    kind = _MultiProcessingDataLoaderIter
    found: list[Any] = [one for one in gc.get_objects() if issubclass(type(one), kind)]
    return [one for one in found if not getattr(one, "_shutdown", True)]


def _is_shared(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return is_mapped(value)
    return bool(value.device.type == "cpu" and value.is_shared())
