"""Which streams of samples a replay may leave out."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from supervisor.worker.core.call_state import CallState
from supervisor.worker.loading import stream_proof as dataset_state
from supervisor.worker.loading.loader_skipping import contents
from supervisor.worker.loading.loading_proofs import LoadingProofs
from supervisor.worker.loading.stream_proof import Stream, StreamMark, StreamProof

ROWS = torch.randn(120, 4)
COUNTS: dict[str, int] = {}


class Own(IterableDataset[Any]):
    """Nobody can say where its generator stands."""

    def __iter__(self) -> Iterator[Any]:
        for number in torch.randperm(120).tolist():
            time.sleep(0.0003)
            yield ROWS[number]


class Telling(Own):
    """As a library's."""

    def state_dict(self) -> dict[str, Any]:
        return {"place": 3}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class TellingLong(Telling):
    def state_dict(self) -> dict[str, Any]:
        time.sleep(0.1)
        return super().state_dict()


class TellingMore(Telling):
    def state_dict(self) -> dict[str, Any]:
        return {"rows": ROWS}


class Failing(Telling):
    def state_dict(self) -> dict[str, Any]:
        raise RuntimeError("not between two samples")


class Counting(Telling):
    def __iter__(self) -> Iterator[Any]:
        for row in super().__iter__():
            COUNTS["rows"] = COUNTS.get("rows", 0) + 1
            yield row


class Fast(Telling):
    def __iter__(self) -> Iterator[Any]:
        yield from ROWS.tolist()


@pytest.fixture(autouse=True)
def _of_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tells_state` takes the data sets above for a library's."""
    monkeypatch.setattr(dataset_state, "is_users", lambda path: False)


def _watched(data: Any) -> tuple[StreamProof, list[bool]]:
    """Goes over a data set; returns its proof, and of each batch whether the stream went on."""
    proofs = LoadingProofs(CallState(), promised=False)
    followed = []
    iterator: Any = iter(DataLoader(data, 8))
    fetcher = iterator._dataset_fetcher
    proof = proofs.of_stream(fetcher)
    assert proof is not None
    stream: Stream = proof.start(fetcher)
    for _ in range(13):
        proof.make(stream, functools.partial(fetcher.fetch, range(8)))
        followed.append(proof.settle(stream))
        proof.decide()
    return proof, followed


def test_a_stream_that_tells_its_state_holds() -> None:
    proof, followed = _watched(Telling())

    assert proof.holds(), proof.reason
    assert followed == [False] + 12 * [True]
    assert dict(proof.told)["0.0.13"] == '{"place": 3}'


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Own, "does not tell where it stands"),
        (TellingLong, "takes too long"),
        (TellingMore, "what it tells of its state"),
        (Failing, "RuntimeError"),
        (Counting, "loading changes something that stays"),
        (Fast, "loading is cheap"),
    ],
)
def test_other_streams_are_given_up(kind: type[Own], reason: str) -> None:
    proof, _ = _watched(kind())

    assert proof.is_given_up
    assert not proof.holds()
    assert reason in proof.reason


def test_a_mark_comes_back_from_the_tape() -> None:
    mark = StreamMark(3, 2, 70_000, follows=True, drawn=b"drawn", fetch=b"fetch")

    assert StreamMark.unpack(mark.pack()) == mark


def test_the_mark_of_an_older_tape_is_read_without_its_place() -> None:
    data = bytearray(StreamMark(3, 2, 70_000, follows=True, fetch=b"fetch").pack())
    data[14:22] = (41).to_bytes(8, "little")

    assert StreamMark.unpack(bytes(data)) == StreamMark(3, 2, 70_000, follows=True, fetch=b"fetch")


def test_two_batches_that_differ_in_one_late_value_have_other_contents() -> None:
    batch = torch.zeros(8, 4), torch.zeros(8, dtype=torch.bool)
    other = batch[0].clone(), batch[1].clone()
    other[1][-1] = True

    assert contents(batch) == contents((batch[0].clone(), batch[1].clone()))
    assert contents(batch) != contents(other)
