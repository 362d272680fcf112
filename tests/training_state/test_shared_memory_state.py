"""A state in memory that another process holds is what was copied there, or nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from supervisor.errors import CheckpointDamaged
from supervisor.storage.run.kept_memory import KeptMemory, read_head
from supervisor.training_state import shared_memory_state
from supervisor.training_state.shared_memory_state import SharedMemoryState, read_place
from supervisor.training_state.state import digest


@pytest.fixture
def path() -> Iterator[str]:
    memory = KeptMemory(1)
    yield memory.places["0"][0]
    memory.close()


def state_of(size: int, fill: float) -> dict[str, Any]:
    return {
        "weights": {"a": torch.full((size, 3), fill), "half": torch.ones(5, dtype=torch.bfloat16)},
        "number": torch.tensor(7),
        "none": torch.empty(0),
        "sparse": torch.eye(3).to_sparse(),
        "turned": torch.arange(6.0).view(2, 3).t(),
        "flags": torch.tensor([True, False]),
        "plain": [1, 2.5, "text", None, {"nested": (True, 3)}],
    }


def test_what_is_read_is_what_was_put(path: str) -> None:
    state = state_of(100, 1.5)
    place = SharedMemoryState(path)

    place.put(4, {"state": state, "meta": {"tape_offset": 12}})
    state["weights"]["a"].zero_()

    step, content = read_place(path) or (0, {})
    assert step == 4
    assert content["meta"] == {"tape_offset": 12}
    found = content["state"]
    assert torch.equal(found.pop("sparse").to_dense(), torch.eye(3))
    expected = state_of(100, 1.5)
    expected.pop("sparse")
    assert digest(found) == digest(expected)


def test_a_place_is_used_again_and_does_not_grow_for_ever(path: str) -> None:
    place = SharedMemoryState(path)
    place.put(1, {"state": state_of(100_000, 0.0)})
    first = os.stat(path).st_size
    for step in range(2, 6):
        place.put(step, {"state": state_of(100_000, float(step))})
    assert os.stat(path).st_size == first

    for step in range(6, 300):
        place.put(step, {"state": state_of(300_000 + step, float(step))})

    assert os.stat(path).st_size < 200 << 20
    _, content = read_place(path) or (0, {})
    assert torch.equal(content["state"]["weights"]["a"], torch.full((300_299, 3), 299.0))


def test_a_copy_that_breaks_off_leaves_nothing(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = SharedMemoryState(path)
    place.put(1, {"state": state_of(10, 1.0)})

    def breaks_off(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shared_memory_state, "copy_state", breaks_off)
    with pytest.raises(KeyboardInterrupt):
        place.put(2, {"state": state_of(10, 2.0)})

    assert read_place(path) is None


def test_a_text_that_has_changed_is_not_read(path: str) -> None:
    place = SharedMemoryState(path)
    place.put(1, {"state": state_of(10, 1.0)})
    descriptor = os.open(path, os.O_RDWR)
    head = read_head(descriptor)
    assert head is not None
    os.pwrite(descriptor, b"\xff", head.at + head.length // 2)
    os.close(descriptor)

    with pytest.raises(CheckpointDamaged, match="step 1"):
        read_place(path)
