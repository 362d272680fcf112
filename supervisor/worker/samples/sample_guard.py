"""A data set with samples that cannot be loaded or are not finite: the training without them.

Samples of a data set that hold NaN or infinity: which they are, and from when they are left out.

When an update had to be left out, the rows of its batch that are not finite are traced to their
samples. Loader iterators that begin later leave these out, if they are still not finite.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import default_collate

from supervisor.storage.files.json_files import LineFile, read_lines, to_line
from supervisor.storage.run.exit_notes import outside_cause
from supervisor.training_state.rng import RngState
from supervisor.worker.core.call_state import CallState
from supervisor.worker.core.part import Ended, Part
from supervisor.worker.core.progress import Progress
from supervisor.worker.core.worker_context import WorkerContext


class PoisonedSamples:
    """Of the map-style data sets of one process; see the module's docstring.

    The rule by which a sample is left out knows steps only, not attempts, so that a fast-forward
    makes the batches that the recorded run made: an iterator that begins when n steps
    are done leaves out what was found at an earlier step.

    Args:
        call_state: what is looked at here is not the script's.
        progress: its `position` is the step under way, live or replayed.
        on_found: told (data set, sample, step) of each sample when it is found.

    Attributes:
        known: (name of the data set, sample) → the step at which it was found.
    """

    def __init__(
        self,
        call_state: CallState,
        progress: Progress,
        on_found: Callable[[Any, Any, int], None],
    ) -> None:
        self.known: dict[tuple[str, str], int] = {}
        self._call_state = call_state
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
        with self._call_state.region():
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
                    self._call_state.region(),
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


_Load: TypeAlias = Callable[[Any, Any], Any]

MOST_SHARE = 0.01
MOST = 10
"""So many samples, or this share of a data set if that is more, are left out; where more fail it is
not the samples."""

_POISON = "NaN or infinity"


class SampleGuard(Part):
    """Finds the sample on which a batch of a map-style data set fails, and leaves it out in time.

    The first failure ends the attempt, as it would without us; a sample that fails again in the
    next one is left out, and so are others from then on. What is found is appended to a file that
    all attempts and all forked loader processes share.

    Attributes:
        poisoned: the samples that hold NaN or infinity.
    """

    name = "samples"

    def __init__(self, context: WorkerContext) -> None:
        self._file = LineFile(context.rundir.root / "bad_samples.jsonl")
        self._attempt = context.attempt
        self._warn = context.warn_aloud
        self._told = 0
        self.poisoned = PoisonedSamples(context.call_state, context.progress, self._found_poisoned)
        lines = self._lines()
        failed = [line for line in lines if "found_at" not in line]
        self._known = {(str(line["data"]), str(line["sample"])) for line in failed}
        self._proved = {str(line["data"]) for line in failed if line["left_out"]}
        for line in lines:
            if "found_at" in line:
                key = str(line["data"]), str(line["sample"])
                self.poisoned.known.setdefault(key, int(line["found_at"]))

    def explain(self, batch: Any) -> None:
        """Names the samples that have poisoned an update. See `PoisonedSamples.explain`."""
        self.poisoned.explain(batch)

    def _found_poisoned(self, data_set: Any, index: Any, step: int) -> None:
        key = _name(data_set), str(index)
        if key in self.poisoned.known:
            return
        self.poisoned.known[key] = step
        self._note(key[0], index, _POISON, left_out=False, found_at=step)
        self._warn(
            f"sample {index} of {key[0]} holds {_POISON}: its batch's update is left out, and the "
            "next epochs go without it"
        )

    def known_to_a_new_iterator(self, data_set: Any) -> frozenset[str]:
        """Samples that are to be left out if they still hold NaN. Called as an iterator begins."""
        if not self.poisoned.known:
            return frozenset()
        return self.poisoned.known_to_a_new_iterator(_name(data_set), _most(data_set))

    def without_poisoned(self, fetcher: Any, indices: Any) -> Any:
        """Returns the indices of a batch without those of poisoned samples. In any process."""
        if not (fetcher.auto_collation and isinstance(indices, (list, tuple))):
            return indices
        bad = self.poisoned.poisoned(fetcher.dataset, indices, fetcher._poisoned)
        rest = [index for index in indices if index not in bad]
        if not (bad and rest):
            return indices
        data = _name(fetcher.dataset)
        for index in bad:
            step = self.poisoned.known[data, str(index)]
            self._note(data, index, _POISON, left_out=True, found_at=step)
        return rest

    def after_failure(self, fetcher: Any, indices: Any, error: Exception, load: _Load) -> Any:
        """Returns the batch without its bad samples, or raises `error`. In any process."""
        if not (fetcher.auto_collation and isinstance(indices, (list, tuple))):
            raise error
        if outside_cause(error) is not None:  # a disk, a connection: no sample is to blame
            raise error
        bad = _failing(fetcher.dataset, indices)
        data = _name(fetcher.dataset)
        rest = [index for index in indices if index not in bad]
        again = data in self._proved or all((data, str(index)) in self._known for index in bad)
        leaves_out = bool(bad and rest) and again and self._may_leave_out(fetcher.dataset, bad)
        for index, why in bad.items():
            if leaves_out or (data, str(index)) not in self._known:
                self._note(data, index, why, left_out=leaves_out)
        if not leaves_out:
            raise error
        self._proved.add(data)
        return load(fetcher, rest)

    def ends(self, how: Ended) -> None:
        """Tells the journal which samples this attempt left out."""
        left_out = [line for line in self._of_this_attempt() if line["left_out"]]
        for line in left_out[self._told :]:
            self._warn(f"left out: {_sentence(line)}")
        self._told = len(left_out)

    @property
    def evidence(self) -> tuple[str, ...]:
        """The samples of this attempt that failed, or were not finite, and were not left out."""
        lines = [line for line in self._of_this_attempt() if not line["left_out"]]
        return tuple(_sentence(line) for line in lines)

    def _may_leave_out(self, data_set: Any, bad: dict[Any, str]) -> bool:
        lines = self._lines()
        known = {str(line["sample"]) for line in lines if line["data"] == _name(data_set)}
        return len(known | {str(index) for index in bad}) <= _most(data_set)

    def _note(self, data: str, index: Any, why: str, *, left_out: bool, **more: Any) -> None:
        line = {
            "attempt": self._attempt,
            "data": data,
            "sample": str(index),
            "error": why,
            "left_out": left_out,
            **more,
        }
        if line in self._lines():  # by another loader process, of an earlier epoch
            return
        with contextlib.suppress(OSError):  # a full disk
            self._file.append(to_line(line))

    def _lines(self) -> list[dict[str, Any]]:
        try:
            return read_lines(self._file.path)
        except OSError:
            return []

    def _of_this_attempt(self) -> list[dict[str, Any]]:
        return [line for line in self._lines() if line["attempt"] == self._attempt]


def _failing(data_set: Any, indices: Sequence[Any]) -> dict[Any, str]:
    found = {}
    for index in indices:
        try:
            data_set[index]
        except Exception as error:
            if outside_cause(error) is None:
                found[index] = f"{type(error).__name__}: {error}"[:300]
    return found


def _most(data_set: Any) -> float:
    return max(MOST, MOST_SHARE * len(data_set))


def _name(data_set: Any) -> str:
    try:
        return f"{type(data_set).__name__} of {len(data_set)}"
    except TypeError:
        return type(data_set).__name__


def _sentence(line: dict[str, Any]) -> str:
    verb = "holds" if "found_at" in line else "raised"
    return f"sample {line['sample']} of {line['data']} {verb} {line['error']}"
