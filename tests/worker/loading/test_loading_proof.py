"""Which data sets are seen to change nothing when they load."""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import queue
import random
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from supervisor.worker.core.call_state import CallState
from supervisor.worker.loading.loading_proof import PROFILED, TIMED, LoadingProof

TABLE: dict[str, Any] = {"scale": 2.0}
COUNTS: dict[str, int] = {}


class Pure(Dataset[Any]):
    """Reads from what it holds: tensors, arrays, tables of its own and of its module."""

    def __init__(self) -> None:
        self.data = torch.randn(64, 4)
        self.labels = np.arange(64.0)
        self.names = [f"sample {i}" for i in range(64)]
        self.order = np.random.default_rng(0)

    def __getitem__(self, i: int) -> Any:
        time.sleep(0.002)
        parts = [self.data[i] * TABLE["scale"], self.labels[i]]
        parts.append(len(self.names[i]))
        return parts


class OwnGenerator(Pure):
    def __getitem__(self, i: int) -> Any:
        return [*super().__getitem__(i), self.order.random()]


class TorchDraws(Pure):
    def __getitem__(self, i: int) -> Any:
        return super().__getitem__(i)[0] + torch.randn(4)


class PythonDraws(Pure):
    def __getitem__(self, i: int) -> Any:
        return super().__getitem__(i)[0] + random.random()


class NumpyDraws(Pure):
    def __getitem__(self, i: int) -> Any:
        return super().__getitem__(i)[0] + float(np.random.rand())


class Caching(Pure):
    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[int, Any] = {}

    def __getitem__(self, i: int) -> Any:
        if i not in self.cache:
            self.cache[i] = super().__getitem__(i)
        return self.cache[i]


class Overwriting(Pure):
    def __getitem__(self, i: int) -> Any:
        self.labels[i] += 1.0
        return super().__getitem__(i)


class CountingInItsClass(Pure):
    seen = 0

    def __getitem__(self, i: int) -> Any:
        type(self).seen += 1
        return super().__getitem__(i)


class CountingGlobally(Pure):
    def __getitem__(self, i: int) -> Any:
        COUNTS["seen"] = COUNTS.get("seen", 0) + 1
        return super().__getitem__(i)


class Kept:
    """What data sets below count in: only its attributes change."""

    seen = 0


class KeptInList(list[int]):
    seen = 0


class Waiting(queue.SimpleQueue):  # type: ignore[type-arg]
    """It keeps in C what was put into it, and has attributes beside."""


class Holder:
    kept = Kept()


class CountingInAttributes(Pure):
    kept: Any = Kept()

    def __getitem__(self, i: int) -> Any:
        self.kept.seen += 1
        return super().__getitem__(i)


class CountingInItsClassesObject(CountingInAttributes):
    @property
    def held(self) -> Any:
        return Holder.kept

    def __getitem__(self, i: int) -> Any:
        self.held.seen += 1
        return Pure.__getitem__(self, i)


class CountingInC(Pure):
    def __init__(self, count: Any) -> None:
        super().__init__()
        self.count = count

    def __getitem__(self, i: int) -> Any:
        self.count.value += 1
        return super().__getitem__(i)


class CountingInKeys(Pure):
    def __init__(self) -> None:
        super().__init__()
        self.place: dict[int, None] = {0: None}

    def __getitem__(self, i: int) -> Any:
        (last,) = self.place
        del self.place[last]
        self.place[last + 1] = None
        return super().__getitem__(i)


class CountingAmongMany(Pure):
    def __init__(self) -> None:
        super().__init__()
        self.many = list(range(30_000, 40_000))

    def __getitem__(self, i: int) -> Any:
        self.many[5_001] += 1
        return super().__getitem__(i)


class CountingInALibrary(Pure):
    def __getitem__(self, i: int) -> Any:
        itertools.seen_by_test = i  # type: ignore[attr-defined]
        return super().__getitem__(i)


class CountingInTheEnvironment(Pure):
    def __getitem__(self, i: int) -> Any:
        os.environ["SUPERVISOR_TEST_SEEN"] = str(i)
        return super().__getitem__(i)


@functools.cache
def _cached(i: int) -> float:
    return random.random()


class CachingInAFunction(Pure):
    def __getitem__(self, i: int) -> Any:
        return [*super().__getitem__(i), _cached(i)]


def _named() -> None:
    """Its attribute is counted up."""


def _rarely(i: int) -> int:
    DATABASE.execute("select 1")
    return i


DATABASE = sqlite3.connect(":memory:")


class KeepingNowAndThen(Pure):
    def __getitem__(self, i: int) -> Any:
        return super().__getitem__(_rarely(i) if i == 63 else i)


def _counting(kept: Any) -> Callable[[], Dataset[Any]]:
    def make() -> Dataset[Any]:
        data = CountingInAttributes()
        data.kept = kept
        kept.seen = 0
        return data

    return make


class Assigning(Pure):
    def __getitem__(self, i: int) -> Any:
        global LAST
        LAST = i
        return super().__getitem__(i)


LAST = -1


class GoingOn(Pure):
    def __init__(self) -> None:
        super().__init__()
        self.source = itertools.cycle(range(64))

    def __getitem__(self, i: int) -> Any:
        return super().__getitem__(next(self.source))


class Writing(Pure):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def __getitem__(self, i: int) -> Any:
        with self.path.open("a") as file:
            file.write("x")
        return super().__getitem__(i)


class WritingNowAndThen(Pure):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def __getitem__(self, i: int) -> Any:
        if i == 63:
            self.path.write_text("the last")
        return super().__getitem__(i)


class Cheap(Pure):
    def __getitem__(self, i: int) -> Any:
        return self.data[i]


def _fetched(data: Dataset[Any], fetches: int = PROFILED + TIMED) -> LoadingProof:
    proof = LoadingProof(0, data, list, CallState())
    for number in range(fetches):
        indices = [number, number + 1]
        proof.watch(indices, lambda indices=indices: [data[i] for i in indices])  # type: ignore[misc]
        proof.decide()
    return proof


def test_a_data_set_that_only_reads_is_proved() -> None:
    proof = _fetched(Pure())

    assert proof.holds(), proof.reason
    assert not proof.is_given_up


@pytest.mark.parametrize("make", [TorchDraws, PythonDraws, NumpyDraws])
def test_drawing_from_the_global_generators_changes_nothing_else(
    make: Callable[[], Dataset[Any]],
) -> None:
    proof = _fetched(make())

    assert proof.holds(), proof.reason


def test_nothing_is_proved_before_all_was_watched() -> None:
    assert not _fetched(Pure(), PROFILED + TIMED - 1).holds()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (OwnGenerator, "changes something"),
        (Caching, "changes something"),
        (Overwriting, "changes something"),
        (CountingInItsClass, "changes something"),
        (CountingGlobally, "changes something"),
        (_counting(_named), "changes something"),
        (_counting(KeptInList()), "changes something"),
        (_counting(torch.zeros(2)), "changes something"),
        (CountingInItsClassesObject, "changes something"),
        (CountingInALibrary, "changes something"),
        (CountingInKeys, "changes something"),
        (CountingAmongMany, "changes something"),
        (CachingInAFunction, "changes something"),
        (functools.partial(CountingInC, ctypes.c_int(0)), "does not show its state"),
        (_counting(Waiting()), "does not show its state"),
        (KeepingNowAndThen, "does not show its state"),
        (CountingInTheEnvironment, "changes something"),
        (Assigning, "global variable LAST"),
        (GoingOn, "goes on from sample to sample"),
        (Cheap, "cheap"),
    ],
)
def test_a_data_set_that_changes_something_is_given_up(
    make: Callable[[], Dataset[Any]], reason: str
) -> None:
    proof = _fetched(make())

    assert reason in proof.reason
    assert proof.is_given_up
    assert not proof.holds()


@pytest.mark.parametrize("kind", [Writing, WritingNowAndThen])
def test_a_data_set_that_writes_is_given_up(kind: type[Any], tmp_path: Path) -> None:
    proof = _fetched(kind(tmp_path / "log"))

    assert "writ" in proof.reason
    assert proof.is_given_up


def test_a_change_after_the_first_fetches_is_found_when_a_checkpoint_is_made() -> None:
    data = Pure()
    proof = _fetched(data)

    data.names.append("late")

    assert not proof.holds()


def test_no_random_number_is_drawn_by_looking() -> None:
    torch.manual_seed(3)
    expected = torch.rand(()).item()
    data = Pure()
    torch.manual_seed(3)

    _fetched(data, 2)

    assert torch.rand(()).item() == expected
