"""Streams that tell where they stand."""

from __future__ import annotations

import math
import types
from collections.abc import Iterator
from typing import Any

import pytest

from supervisor.worker.loading import stream_proof as module
from supervisor.worker.loading.fingerprint import CannotTell
from supervisor.worker.loading.stream_proof import (
    StreamMark,
    dataset_state,
    go_on_from,
    tells_state,
)


class Told:
    """As a library's: it keeps where it is to begin."""

    def __init__(self) -> None:
        self.start: dict[str, Any] | None = None
        self.extra: Any = None

    def state_dict(self) -> dict[str, Any]:
        return {"place": 3, "extra": self.extra}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state

    def __iter__(self) -> Iterator[int]:
        yield from range(self.start["place"] if self.start else 0, 6)


def test_methods_of_the_script_are_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    of_script = tells_state(Told())
    monkeypatch.setattr(module, "is_users", lambda path: False)

    assert not of_script
    assert tells_state(Told())
    assert not tells_state([])


@pytest.mark.parametrize("extra", [object(), (1, 2), math.nan, {1: 2}])
def test_a_state_that_json_does_not_keep_is_not_told(extra: Any) -> None:
    data = Told()
    data.extra = extra

    with pytest.raises(CannotTell):
        dataset_state(data)


def test_the_next_epoch_begins_at_its_start() -> None:
    fetcher = types.SimpleNamespace(dataset=Told(), dataset_iter=None)

    made = go_on_from(fetcher, dataset_state(fetcher.dataset))
    first = next(fetcher.dataset_iter)
    made()

    assert (first, list(fetcher.dataset_iter)) == (3, [4, 5])
    assert list(fetcher.dataset) == [0, 1, 2, 3, 4, 5]


def test_a_mark_keeps_a_state() -> None:
    with_state = StreamMark(1, 2, 3, drawn=b"drawn", fetch=b"fetch", state='{"place": 3}')
    without = StreamMark(1, 2, 3, follows=True, drawn=b"drawn", fetch=b"fetch")

    assert StreamMark.unpack(with_state.pack()) == with_state
    assert StreamMark.unpack(without.pack()) == without
