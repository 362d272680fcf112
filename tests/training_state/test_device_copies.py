"""Copies for which the host does not wait; tensors on the host stand for those on a device, whose
streams do nothing before somebody waits for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from supervisor.settings import SnapshotSettings
from supervisor.training_state import device_copies, host_memory, snapshot
from supervisor.training_state.host_memory import HostMemory
from supervisor.training_state.snapshot import SnapshotRing, begin_copy, copy_state
from supervisor.training_state.tensors import write_into


class Stream:
    def __init__(self, name: Any) -> None:
        self.name, self.work = name, list[Callable[[], None]]()

    def wait_event(self, event: Event) -> None:
        CALLS.append(f"{self.name} waits")


class Event:
    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: Stream) -> None:
        CALLS.append(f"{stream.name} records")
        self.stream = stream

    def synchronize(self) -> None:
        CALLS.append("host waits")
        while self.stream.work:
            self.stream.work.pop(0)()

    def elapsed_time(self, other: Event) -> float:
        return 250.0


CALLS: list[str] = []
CURRENT: list[Stream] = []


class Within:
    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        CURRENT.append(self.stream)

    def __exit__(self, *_: object) -> None:
        CURRENT.pop()


def copy_later(targets: Any, sources: Any, *, non_blocking: bool) -> None:
    assert non_blocking
    CALLS.append("copies")
    values = [source.clone() for source in sources]
    CURRENT[-1].work.append(lambda: torch._foreach_copy_(list(targets), values))


def fresh_memory(size: int, pin_memory: bool = False) -> Any:
    return torch.full((size // 4,), -1.0).untyped_storage()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every tensor of float32 is on it."""
    main = Stream("training")
    monkeypatch.setattr(device_copies, "on_device", lambda t: t.dtype == torch.float32)
    monkeypatch.setattr(device_copies, "is_in_use", lambda: True)
    monkeypatch.setattr(device_copies, "_copy", copy_later)
    monkeypatch.setattr(device_copies, "_SIDES", {})
    monkeypatch.setattr(snapshot, "HOST_MEMORY", HostMemory())
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("side"))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", Within)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(host_memory, "_memory", fresh_memory)
    CALLS.clear()
    yield
    assert not CURRENT


STATE = {"models": {"w": torch.ones(3)}, "steps": [torch.arange(4)]}


def test_the_training_waits_for_the_copy_and_the_host_does_not(device: None) -> None:
    copied, copying = begin_copy(STATE)

    assert CALLS == [
        "training records",
        "side waits",
        "copies",
        "side records",
        "training waits",
    ]
    assert copied["models"]["w"].tolist() == [-1, -1, -1]
    copying.wait()
    copying.wait()
    assert CALLS[5:] == ["host waits"]  # once
    assert copied["models"]["w"].tolist() == [1, 1, 1]


def test_whoever_asks_for_a_plain_copy_has_it_at_once(device: None) -> None:
    assert copy_state(STATE)["models"]["w"].tolist() == [1, 1, 1]


def test_a_snapshot_is_read_only_when_it_is_there(device: None) -> None:
    ring = SnapshotRing(SnapshotSettings(max_share=0.9))
    weights = torch.zeros(2)
    for step in range(3):
        weights = torch.full((2,), float(step))
        ring.take(step, {"w": weights}, {})
    waits = CALLS.count("host waits")

    newest = ring.newest()

    assert newest is not None
    assert newest.held["w"].tolist() == [-1, -1]
    assert newest.state["w"].tolist() == [2, 2]
    assert CALLS.count("host waits") == waits + 1


def test_the_time_of_the_device_is_asked_one_copy_later(device: None) -> None:
    ring = SnapshotRing(SnapshotSettings(max_share=0.9))
    ring.take(0, STATE, {})
    after_first = CALLS.count("host waits")
    first = ring._snapshots[0].copying
    ring.take(1, STATE, {})

    assert after_first == 1  # no other copy tells how long one takes
    assert ring.device_s == 0.25
    assert first._is_done
    assert not ring._snapshots[1].copying._is_done


def test_copies_of_what_is_on_the_host_are_made_at_once() -> None:
    copied, copying = begin_copy(STATE)

    assert copying is device_copies.DONE
    assert copying.device_s() == 0.0
    assert copied["steps"][0].tolist() == [0, 1, 2, 3]


def test_a_state_is_put_back_with_one_wait_at_the_end(
    device: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    how: list[bool] = []
    copy = torch.Tensor.copy_

    def noted(self: torch.Tensor, saved: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        how.append(non_blocking)
        return copy(self, saved)

    monkeypatch.setattr(torch.Tensor, "copy_", noted)
    monkeypatch.setattr(torch.cuda, "Event", lambda: Event(enable_timing=True))
    saved = torch.arange(3)  # on the host
    live = [torch.zeros(3), torch.zeros(3), torch.zeros(3, dtype=torch.int64)]

    with device_copies.written_together():
        for target in live:
            write_into(target, saved)
        assert "host waits" not in CALLS
    write_into(live[0], saved)

    assert CALLS == ["training records", "host waits"]
    assert how == [True, True, False, False]  # from the host to a device alone; not outside
    assert all(target.tolist() == [0, 1, 2] for target in live)
