"""Which streams of samples are seen to keep nothing but their place."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from supervisor.worker.ground.interception_state import InterceptionState
from supervisor.worker.recording.loading.loading_proofs import LoadingProofs
from supervisor.worker.recording.loading.stream_proof import Stream, StreamMark, StreamProof
from supervisor.worker.replay.loading.loader_skipping import contents

ROWS = torch.randn(120, 4)


class Pure(IterableDataset[Any]):
    epoch = 0

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        for number in torch.randperm(120).tolist():
            time.sleep(0.0003)
            yield ROWS[number]


class Sharded(Pure):
    def __iter__(self) -> Iterator[Any]:
        for shard in range(2):
            for row in ROWS[shard * 60 : shard * 60 + 60].tolist():
                time.sleep(0.0003)
                yield torch.tensor(row)


class Counting(Pure):
    def __iter__(self) -> Iterator[Any]:
        total = 0.0
        for row in super().__iter__():
            total += float(row[0])
            yield row + total


class Buffered(Pure):
    def __iter__(self) -> Iterator[Any]:
        waiting = []
        for row in super().__iter__():
            waiting.append(row)
            if len(waiting) > 9:
                yield waiting.pop(0)


class Drawing(Pure):
    def __iter__(self) -> Iterator[Any]:
        own = torch.Generator().manual_seed(0)
        for row in super().__iter__():
            yield row + torch.randn(4, generator=own)


class Marking(Pure):
    def __init__(self) -> None:
        self.rows = [[number, 0] for number in range(120)]

    def __iter__(self) -> Iterator[Any]:
        for row in self.rows:
            time.sleep(0.0003)
            row[1] += 1
            yield ROWS[row[0]] * row[1]


class MarkingMany(Pure):
    def __init__(self) -> None:
        self.rows = [[number % 120, 0] for number in range(120_000)]

    def __iter__(self) -> Iterator[Any]:
        for row in self.rows:
            time.sleep(0.0003)
            row[1] += 1
            yield ROWS[row[0]] * row[1]


class MarkingByNumber(MarkingMany):
    def __iter__(self) -> Iterator[Any]:
        for place, number in enumerate(torch.randperm(120_000).tolist()):
            time.sleep(0.0003)
            self.rows[number][1] = place
            yield ROWS[number % 120]


class Noting(Pure):
    seen = 0

    def __iter__(self) -> Iterator[Any]:
        for row in super().__iter__():
            self.seen += 1
            yield row


class Chained(Pure):
    """Its second part is other code, which is entered after the first fetches were watched."""

    def __iter__(self) -> Iterator[Any]:
        yield from super().__iter__() if self.epoch else self._begin()
        yield from super().__iter__()

    def _begin(self) -> Iterator[Any]:
        for number in range(60):
            time.sleep(0.0003)
            yield ROWS[number]


class Fast(Pure):
    def __iter__(self) -> Iterator[Any]:
        yield from ROWS.tolist()


def _watched(data: Any) -> tuple[StreamProof, list[bool]]:
    """Goes over a data set; returns its proof, and of each batch whether the stream went on."""
    proofs = LoadingProofs(InterceptionState(), promised=False)
    followed = []
    iterator: Any = iter(DataLoader(data, 8))
    fetcher = iterator._dataset_fetcher
    proof = proofs.of_stream(fetcher)
    assert proof is not None
    stream: Stream = proof.begin(fetcher)
    for _ in range(13):
        proof.make(stream, functools.partial(fetcher.fetch, range(8)))
        followed.append(proof.settle(stream)[1])
        proof.decide()
    return proof, followed


@pytest.mark.parametrize("kind", [Pure, Sharded])
def test_a_stream_that_keeps_nothing_holds(kind: type[Pure]) -> None:
    proof, followed = _watched(kind())

    assert proof.holds(), proof.reason
    assert followed.count(False) <= 2


@pytest.mark.parametrize(
    "kind",
    [Counting, Buffered, Drawing, Marking, MarkingMany, MarkingByNumber, Noting, Chained, Fast],
)
def test_a_stream_that_keeps_something_or_is_cheap_does_not(kind: type[Pure]) -> None:
    proof, followed = _watched(kind())

    assert not proof.holds() or not any(followed)


def test_a_mark_comes_back_from_the_tape() -> None:
    mark = StreamMark(3, 2, 70_000, left=-9, follows=True, drawn=b"drawn", fetch=b"fetch")

    assert StreamMark.unpack(mark.pack()) == mark


def test_two_batches_that_differ_in_one_late_value_have_other_contents() -> None:
    batch = torch.zeros(8, 4), torch.zeros(8, dtype=torch.bool)
    other = batch[0].clone(), batch[1].clone()
    other[1][-1] = True

    assert contents(batch) == contents((batch[0].clone(), batch[1].clone()))
    assert contents(batch) != contents(other)
