"""Copies for which the host does not wait; tensors on the host stand for those on a device, whose
streams do nothing before somebody waits for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from supervisor.settings import SnapshotSettings
from supervisor.training_state import device_copies
from supervisor.training_state.device_copies import HostMemory
from supervisor.training_state.snapshot import SnapshotRing, begin_copy, copy_state


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


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every tensor of float32 is on it."""
    main = Stream("training")
    monkeypatch.setattr(device_copies, "on_device", lambda t: t.dtype == torch.float32)
    monkeypatch.setattr(device_copies, "is_in_use", lambda: True)
    monkeypatch.setattr(device_copies, "_copy", copy_later)
    monkeypatch.setattr(device_copies, "_SIDES", {})
    monkeypatch.setattr(device_copies, "HOST_MEMORY", HostMemory())
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("side"))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", Within)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    asked = torch.empty_like

    def empty_like(source: torch.Tensor, **how: Any) -> torch.Tensor:
        how.pop("pin_memory", None)
        return asked(source, **how).fill_(-1)

    monkeypatch.setattr(torch, "empty_like", empty_like)
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


def test_pinned_memory_that_is_refused_is_asked_for_once_and_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_copies, "on_device", lambda t: True)
    asked, original = [], torch.empty_like

    def empty_like(source: torch.Tensor, **how: Any) -> torch.Tensor:
        asked.append(how)
        if how.get("pin_memory"):
            raise RuntimeError("CUDA error: out of memory\nmore lines")
        return original(source, **how)

    monkeypatch.setattr(torch, "empty_like", empty_like)
    memory = HostMemory()

    found = [memory.like(torch.ones(2, dtype=torch.float16)) for _ in range(2)]

    assert [(one.shape, one.dtype) for one in found] == [((2,), torch.float16)] * 2
    assert [how.get("pin_memory") for how in asked] == [True, None, None]
    assert memory.news() == (
        "no pinned memory for copies of the state, so they take longer: CUDA error: out of memory"
    )
    assert memory.news() == ""
