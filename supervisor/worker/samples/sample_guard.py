"""A data set with samples that cannot be loaded or are not finite: the training without them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from supervisor.storage.files.line_file import LineFile, read_lines, to_line
from supervisor.storage.run.exit_signs import outside_cause
from supervisor.worker.core.part import Ended, Part
from supervisor.worker.ground.interception_state import InterceptionState
from supervisor.worker.ground.progress import Progress
from supervisor.worker.samples.poisoned_samples import PoisonedSamples

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

    Args:
        path: the file of JSON lines.
        attempt: number of this attempt.
        warn: told in the training's own process of each sample found or left out.
        interception, progress: see `PoisonedSamples`.

    Attributes:
        poisoned: the samples that hold NaN or infinity.
    """

    name = "samples"

    def __init__(
        self,
        path: Path,
        attempt: int,
        warn: Callable[[str], None],
        interception: InterceptionState,
        progress: Progress,
    ) -> None:
        self._file = LineFile(path)
        self._attempt = attempt
        self._warn = warn
        self._told = 0
        self.poisoned = PoisonedSamples(interception, progress, self._found_poisoned)
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
