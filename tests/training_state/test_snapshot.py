from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.settings import SnapshotSettings
from supervisor.training_state.snapshot import SnapshotRing, copy_state, least_useful, state_bytes
from supervisor.training_state.state import digest
from supervisor.training_state.tensors import walk_tensors
from tests.training_state.small_runs import build_run


def ring_after(steps: list[int], settings: SnapshotSettings | None = None) -> SnapshotRing:
    ring = SnapshotRing(settings or SnapshotSettings())
    for step in steps:
        ring.take(step, {"models": {"w": torch.full((2,), float(step))}}, {"step": step})
    return ring


def addresses(state: dict[str, object]) -> set[int]:
    return {tensor.data_ptr() for _, tensor in walk_tensors(state)}


def test_a_copy_equals_the_live_state_and_does_not_follow_it() -> None:
    run = build_run(lambda p: torch.optim.Adam(p, 0.01))
    run.train(2)
    before = digest(run.state.capture())

    copied = copy_state(run.state.capture())
    run.train(1)

    assert digest(copied) == before


def test_a_copy_into_an_old_one_reuses_its_memory() -> None:
    run = build_run(lambda p: torch.optim.Adam(p, 0.01))
    run.train(2)
    old = copy_state(run.state.capture())
    memory = addresses(old)
    run.train(1)

    copied = copy_state(run.state.capture(), old)

    assert digest(copied) == digest(run.state.capture())
    shared = len(addresses(copied) & memory) / len(memory)
    assert shared > 0.9


def test_tied_tensors_stay_tied_and_count_once() -> None:
    weight = torch.zeros(4)

    copied = copy_state({"a": weight, "b": weight})

    assert copied["a"] is copied["b"]
    assert state_bytes({"a": weight, "b": weight}) == 16


def test_a_state_that_changed_its_shape_is_copied_all_the_same() -> None:
    old = copy_state({"a": torch.zeros(2), "b": [torch.zeros(3)], "c": 1})

    copied = copy_state({"a": torch.ones(5), "b": [torch.ones(3), torch.ones(1)]}, old)

    assert digest(copied) == digest({"a": torch.ones(5), "b": [torch.ones(3), torch.ones(1)]})


def test_a_copied_view_owns_its_values() -> None:
    base = torch.arange(6.0).reshape(2, 3)

    copied = copy_state({"t": base.t(), "expanded": base[:1].expand(4, 3)})

    assert torch.equal(copied["t"], base.t())
    assert torch.equal(copied["expanded"], base[:1].expand(4, 3))


@given(
    gaps=st.lists(st.integers(1, 60), min_size=5, max_size=200),
    depths=st.lists(st.integers(1, 400), min_size=1, max_size=4, unique=True),
)
@settings(max_examples=50, deadline=None)
def test_thinning_keeps_the_newest_and_something_as_old_as_the_deepest_depth(
    gaps: list[int], depths: list[int]
) -> None:
    slots = max(len(depths) + 1, 3)
    kept: list[int] = []
    now = 0
    for gap in gaps:
        now += gap
        while len(kept) >= slots:
            kept.pop(least_useful([now - step for step in kept], depths))
        previous = kept[-1] if kept else None
        kept.append(now)

        assert kept == sorted(kept)
        assert previous in (None, now - gap) or len(kept) == slots
        if now - gaps[0] >= max(depths):
            assert now - kept[0] >= max(depths) - max(gaps)


def test_ages_are_bounded_when_snapshots_are_regular() -> None:
    ring = ring_after(list(range(0, 2000, 10)))

    ages = [1990 - step for step in ring.steps()]

    assert len(ages) == 3
    assert 50 <= ages[0] <= 110
    assert ages[1] <= 60
    assert ages[2] == 0


def test_before_is_strict_and_newest_is_newest() -> None:
    ring = ring_after([10, 20, 30])

    older = ring.before(30)

    assert older is not None
    assert older.step == 20
    assert older.extras == {"step": 20}
    assert ring.before(10) is None
    newest = ring.newest()
    assert newest is not None
    assert newest.step == 30


def test_the_abandoned_future_is_dropped_and_its_memory_used_again() -> None:
    ring = ring_after([10, 20, 30])
    newest = ring.newest()
    assert newest is not None
    memory = newest.state["models"]["w"].data_ptr()

    ring.drop_after(20)
    ring.take(25, {"models": {"w": torch.ones(2)}}, {})

    assert ring.steps() == [10, 20, 25]
    taken = ring.newest()
    assert taken is not None
    assert taken.state["models"]["w"].data_ptr() == memory


def test_memory_bounds_the_number_of_copies() -> None:
    two_copies = SnapshotSettings(max_gib=17 / 2**30)
    none_at_all = SnapshotSettings(max_gib=7 / 2**30)

    assert len(ring_after([1, 2, 3], two_copies).steps()) == 2
    assert ring_after([1, 2, 3], none_at_all).steps() == []
    assert ring_after([1], SnapshotSettings(enabled=False)).steps() == []


def test_the_untrained_state_is_there_as_long_as_a_false_start_can_be_found() -> None:
    ring = ring_after(list(range(0, 101, 10)))

    assert ring.steps()[0] == 0
    assert ring_after(list(range(0, 201, 10))).steps()[0] > 0


@pytest.mark.parametrize("interval", [10, 11, 15, 20, 37, 50])
def test_from_the_margin_of_a_rollback_on_there_is_always_a_young_snapshot(interval: int) -> None:
    depths, margin = SnapshotSettings().depths, 10
    kept: list[int] = []
    for step in range(1, 2000):
        if step % interval == 0:
            if len(kept) > len(depths):
                kept.pop(least_useful([step - s for s in kept], depths))
            kept.append(step)

        usable = [s for s in kept if step - s >= margin]

        if step > interval + margin:
            assert step - usable[-1] < 60
