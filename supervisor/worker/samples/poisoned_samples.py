"""Samples of a data set that hold NaN or infinity: which they are, and from when they are left out.

When an update had to be left out, the rows of its batch that are not finite are traced to their
samples. Loader iterators that begin later leave these out, if they are still not finite.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import default_collate

from supervisor.training_state.rng import RngState
from supervisor.worker.ground.interception_state import InterceptionState
from supervisor.worker.ground.progress import Progress


class PoisonedSamples:
    """Of the map-style data sets of one process; see the module's docstring.

    The rule by which a sample is left out knows steps only, not attempts, so that a fast-forward
    makes the batches that the recorded run made: an iterator that begins when n steps
    are done leaves out what was found at an earlier step.

    Args:
        interception: what is looked at here is not the script's.
        progress: its `position` is the step under way, live or replayed.
        on_found: told (data set, sample, step) of each sample when it is found.

    Attributes:
        known: (name of the data set, sample) → the step at which it was found.
    """

    def __init__(
        self,
        interception: InterceptionState,
        progress: Progress,
        on_found: Callable[[Any, Any, int], None],
    ) -> None:
        self.known: dict[tuple[str, str], int] = {}
        self._interception = interception
        self._progress = progress
        self._on_found = on_found
        self._to_watch = 0
        self._handed_out: tuple[weakref.ref[Any], Any, Any] | None = None

    def was_handed_out(self, data: Any, collate: Any, indices: Any, batch: Any) -> None:
        """Called when a loader hands a batch of these samples to the script."""
        try:
            self._handed_out = weakref.ref(data), collate, indices
        except TypeError:  # of a plain list there is no weak reference
            self._handed_out = None
            return
        if self._to_watch > 0 and isinstance(indices, (list, tuple)):
            self._to_watch -= len(indices)
            self._look(batch)

    # --- finding -----------------------------------------------------------------------------

    def explain(self, batch: Any) -> None:
        """Looks for the samples that have poisoned an update. Called when it was left out.

        Args:
            batch: the newest of a loader. Where that is finite, because the script fetches ahead or
                adds up several, later batches are looked at when they are handed out, until each
                sample has come once.
        """
        data = None if self._handed_out is None else self._handed_out[0]()
        if data is not None and not self._look(batch):
            self._to_watch = 2 * len(data)  # from here to the end of an epoch, and all of the next

    def _look(self, batch: Any) -> bool:
        """Returns whether rows of `batch`, the one handed out last, are not finite."""
        assert self._handed_out is not None
        reference, collate, indices = self._handed_out
        data = reference()
        if data is None or not isinstance(indices, (list, tuple)):
            return False
        with self._interception.region():
            rows = _poisoned_rows(batch, len(indices))
            if not rows:
                return False
            samples = [indices[row] for row in rows]
            if collate is not default_collate:  # it may have put them into another order
                samples = [index for index in indices if self._is_poisoned(data, index)]
        for index in samples if len(samples) < len(indices) or len(indices) == 1 else ():
            self._on_found(data, index, self._progress.position)
        return True

    def _is_poisoned(self, data: Any, index: Any) -> bool:
        random_state = RngState.capture()
        try:
            return is_poisoned(data[index])
        except Exception:  # the user's own code
            return False
        finally:
            RngState.restore(random_state)

    # --- leaving out -------------------------------------------------------------------------

    def known_to_a_new_iterator(self, name: str, most: float) -> frozenset[str]:
        """Samples of a data set to be left out; called when an iterator begins, in any process.

        Args:
            most: so many at most; the rest stays in, and costs its updates.
        """
        done = self._progress.position
        found = [key[1] for key, step in self.known.items() if key[0] == name and step < done]
        return frozenset(found[: int(most)])

    def poisoned(self, data: Any, indices: Sequence[Any], known: frozenset[str]) -> list[Any]:
        """Those of the samples about to be loaded that are known and still not finite."""
        found = []
        for index in indices:
            if str(index) in known:
                with (
                    self._interception.region(),
                    contextlib.suppress(Exception),
                ):  # loading tells of it
                    if is_poisoned(data[index]):
                        found.append(index)
        return found


def is_poisoned(sample: Any) -> bool:
    """Whether a tensor, an array or a number of a sample is NaN or infinite."""
    for value in pytree.tree_leaves(sample):
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            value = torch.from_numpy(np.ascontiguousarray(value))
        if isinstance(value, torch.Tensor):
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                return True
        elif isinstance(value, float) and not math.isfinite(value):
            return True
    return False


def _poisoned_rows(batch: Any, rows: int) -> list[int]:
    found: set[int] = set()
    for value in pytree.tree_leaves(batch):
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            continue
        if value.dim() and value.shape[0] == rows:
            bad = ~torch.isfinite(value).reshape(rows, -1).all(dim=1)
            found.update(int(row) for row in bad.nonzero().flatten())
    return sorted(found)
