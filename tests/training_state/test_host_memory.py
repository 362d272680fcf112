"""Memory for copies is made once, in slabs, and ahead of them."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.held_memory import SNAPSHOTS, HeldMemory
from supervisor.settings import SnapshotSettings
from supervisor.training_state import device_copies, host_memory, snapshot
from supervisor.training_state.host_memory import (
    AHEAD,
    ALIGNED,
    LARGEST,
    Arena,
    HostMemory,
    Layout,
    slab_size,
)
from supervisor.training_state.snapshot import SnapshotRing

STATE = {"models": {"w": torch.ones(5 << 20), "b": torch.ones(3)}, "rng": torch.arange(9)}
"""Of 20 MiB."""


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> HostMemory:
    """The process's own, new; it makes slabs without pauses."""
    made = HostMemory()
    monkeypatch.setattr(snapshot, "HOST_MEMORY", made)
    monkeypatch.setattr(host_memory, "PAUSES", 0.0)
    return made


def all_made(memory: HostMemory) -> None:
    for thread in threading.enumerate():
        if thread.name == "supervisor-memory":
            thread.join()
    assert not memory._wanted


@given(
    sizes=st.lists(st.integers(1, 3 * LARGEST // ALIGNED), min_size=1, max_size=60),
    is_pinned=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_places_do_not_overlap_and_little_is_left_over(sizes: list[int], is_pinned: bool) -> None:
    sizes = [size * ALIGNED for size in sizes]
    layout = Layout({is_pinned: sum(sizes)})

    places = [(*layout.place(size, is_pinned), size) for size in sizes]

    for number, begin, size in places:
        assert begin + size <= layout.slabs[number][0]
        for other, at, length in places:
            same = (number, begin, size) == (other, at, length)
            assert same or number != other or begin + size <= at or at + length <= begin
    slabs = sum(size for size, _ in layout.slabs)
    assert slabs <= 2 * sum(sizes) + LARGEST
    if is_pinned:
        assert all(size & (size - 1) == 0 for size, _ in layout.slabs)


def test_a_slab_is_a_power_of_two_where_torch_would_make_it_one() -> None:
    assert slab_size(5, 1000, is_pinned=True) == 512
    assert slab_size(600, 1000, is_pinned=True) == 1024
    assert slab_size(LARGEST + 1, 1 << 40, is_pinned=True) == 2 * LARGEST
    assert slab_size(5, 1000, is_pinned=False) == 1000
    assert slab_size(5, 0, is_pinned=False) == 5
    assert slab_size(5, 1 << 40, is_pinned=False) == LARGEST


@pytest.mark.parametrize(
    "source",
    [
        torch.randn(300, 400),
        torch.randn(300, 400).t(),
        torch.randn(1, 400).expand(300, 400),
        torch.randn(3, 200, 5, 50).to(memory_format=torch.channels_last),
        torch.randn(200_000, dtype=torch.bfloat16)[7:150_001],
        torch.randn(300, 400, dtype=torch.complex64),
        torch.zeros(0, 3),
        torch.tensor(3.0),
    ],
)
def test_memory_of_a_slab_is_as_that_of_torch(source: torch.Tensor) -> None:
    arena = Arena(HostMemory(), [source, torch.ones(100_000)])
    beside = arena.like(torch.ones(100_000)).fill_(7.0)

    copied = arena.like(source).copy_(source)

    usual = torch.empty_like(source)
    assert (copied.shape, copied.dtype) == (usual.shape, usual.dtype)
    assert copied.stride() == usual.stride()
    assert torch.equal(copied, source)
    assert copied.untyped_storage().nbytes() == usual.untyped_storage().nbytes()
    assert copied.storage_offset() == 0
    assert beside.eq(7.0).all()


def test_copies_after_the_first_update_find_their_memory_made(memory: HostMemory) -> None:
    ring = SnapshotRing(SnapshotSettings(max_share=0.9))
    ring.make_ahead(1, STATE)
    assert ring.is_making
    all_made(memory)
    made = {slab.data_ptr() for slab, _ in memory._ready}

    for step in (10, 20, 30, 40):
        ring.take(step, STATE, {})

    assert len(made) == 3 + 1  # one to write a checkpoint from is left
    assert len(memory._ready) == 1
    kept = {one.state["models"]["w"].data_ptr() for one in ring.all()}
    assert kept < made


def test_a_small_state_is_not_worth_a_thread(memory: HostMemory) -> None:
    assert not memory.make_ahead([torch.ones(AHEAD // 8)], 3)
    assert not memory.is_making


def test_the_untrained_state_gives_no_memory_to_a_trained_one(memory: HostMemory) -> None:
    ring = SnapshotRing(SnapshotSettings(max_share=0.9, depths=[10]))
    ring.take(0, {"w": torch.ones(1 << 20)}, {})
    moments = {"w": torch.ones(1 << 20), "moments": [torch.ones(1 << 20)] * 2}
    for step in (200, 210, 220):
        ring.take(step, {**moments, "moments": [torch.ones(1 << 20) for _ in range(2)]}, {})

    assert len(ring._snapshots) == 2
    assert not ring._spare


def test_what_was_made_ahead_counts_and_is_given_back_when_memory_is_short(
    memory: HostMemory,
) -> None:
    free = 1 << 30
    held = HeldMemory(SnapshotSettings(max_share=0.25), free=lambda: free, at_peak=lambda: 0)
    held.has_trained = True
    ring = SnapshotRing(SnapshotSettings(), held)
    ring.make_ahead(1, STATE)
    all_made(memory)
    assert held.copies == 3
    ring.take(10, STATE, {})
    assert held.copies == 3

    free = 1 << 20
    ring.fit(11)

    assert memory._ready == []
    assert held.copies == len(ring.all()) == 0


def test_a_copy_is_waited_for_and_no_more(
    memory: HostMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = threading.Semaphore(0)
    original = host_memory._memory

    def one_at_a_time(size: int, **how: Any) -> Any:
        made.acquire()
        return original(size, **how)

    monkeypatch.setattr(host_memory, "_memory", one_at_a_time)
    memory.make_ahead([torch.ones(5 << 20)], 2)
    is_making = memory.is_making
    made.release()
    while not memory._ready:
        time.sleep(0.001)

    assert is_making
    assert not memory.is_making  # the second copy's is still to come
    made.release()
    all_made(memory)


def test_all_is_given_back_while_it_is_made(
    memory: HostMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, asked = threading.Event(), threading.Event()
    original = host_memory._memory

    def slow(size: int, **how: Any) -> Any:
        asked.set()
        goes_on.wait(60)
        return original(size, **how)

    monkeypatch.setattr(host_memory, "_memory", slow)
    memory.make_ahead([torch.ones(5 << 20)], 3)
    asked.wait(60)

    memory.give_back()
    goes_on.set()
    all_made(memory)

    assert memory._ready == []


def test_pinned_memory_that_is_refused_is_asked_for_once_and_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_copies, "on_device", lambda t: True)
    asked, original = [], torch.empty

    def empty(*size: Any, **how: Any) -> torch.Tensor:
        if how["device"] == "cpu" and how["dtype"] == torch.uint8:
            asked.append(how.get("pin_memory"))
        if how.pop("pin_memory", False):
            raise RuntimeError("CUDA error: out of memory\nmore lines")
        return original(*size, **how)

    monkeypatch.setattr(torch, "empty", empty)
    memory = HostMemory()
    arena = Arena(memory, [torch.ones(2)])

    found = [arena.like(torch.ones(1 << 16, dtype=torch.float16)) for _ in range(2)]

    assert [(one.shape, one.dtype) for one in found] == [((1 << 16,), torch.float16)] * 2
    assert asked == [True, None, None]
    assert memory.news() == (
        "no pinned memory for copies of the state, so they take longer: CUDA error: out of memory"
    )
    assert memory.news() == ""


def test_what_the_snapshots_hold_is_counted_as_it_is_rounded(
    memory: HostMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_copies, "on_device", lambda t: t.dtype == torch.float32)
    original = torch.empty
    monkeypatch.setattr(
        torch, "empty", lambda *size, pin_memory=False, **how: original(*size, **how)
    )
    held = HeldMemory(SnapshotSettings(max_share=0.9), free=lambda: 1 << 30, at_peak=lambda: 0)
    held.has_trained = True
    ring = SnapshotRing(SnapshotSettings(), held)

    ring.make_ahead(1, STATE)
    all_made(memory)

    assert held._held[SNAPSHOTS].size > 33_000_000  # of 21, in one tensor
