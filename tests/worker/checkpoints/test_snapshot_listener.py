"""Snapshots come as often as what they cost allows, and early in a young run."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.worker.checkpoints import snapshot_listener
from supervisor.worker.checkpoints.snapshot_listener import SnapshotListener
from supervisor.worker.core.boundaries import BoundarySchedule, Turns
from supervisor.worker.core.budget import ALLOWANCE_S, SharedBudget
from supervisor.worker.core.part import Arrived

SHARE = 0.0025


class Training:
    """Played on a clock of its own; a check before a snapshot costs half of `cost_s`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, step_s: float, cost_s: float) -> None:
        self.now_s = self.spent_s = 0.0
        self.step_s, self.cost_s = step_s, cost_s
        self.is_warning = False
        self.snapshots: list[int] = []
        self.checks: list[int] = []
        monkeypatch.setattr(snapshot_listener, "own_time", lambda: self.now_s)
        clock = SimpleNamespace(monotonic=lambda: self.now_s)
        monkeypatch.setattr(snapshot_listener, "time", clock)
        self.budget = SharedBudget(0.0)
        settings = SimpleNamespace(
            snapshot=SimpleNamespace(enabled=True, every_steps=None),
            checkpoint=SimpleNamespace(max_overhead=4 * SHARE),
        )
        context: Any = SimpleNamespace(
            turns=Turns(BoundarySchedule()),
            breakers=lambda name: _Breaker(),
            settings=settings,
            budget=self.budget,
            warn=None,
            health=self,
        )
        whole: Any = SimpleNamespace(for_rollback=lambda: ({}, {}))
        self.made_ahead: list[int] = []
        self.ring: Any = SimpleNamespace(
            take=self._take,
            device_s=0.0,
            is_making=False,
            make_ahead=lambda step, _: self.made_ahead.append(step),
        )
        check: Any = SimpleNamespace(name="", check=self._check, checked=lambda *_: None)
        self.listener = SnapshotListener(context, whole, self.ring, check)
        self.next = (0.0, 0.0)

    def _spend(self) -> None:
        self.now_s += self.cost_s / 2
        self.spent_s += self.cost_s / 2

    def _take(self, step: int, *_: object) -> float:
        self._spend()
        self.snapshots.append(step)
        return 1.0

    def _check(self, step: int) -> bool:
        self._spend()
        self.checks.append(step)
        return True

    def run(self, steps: int, first: int = 0) -> None:
        if not first:
            self.listener.before_first_update()
        for step in range(first + 1, first + steps):
            self.now_s += self.step_s
            if step >= self.next[0] or self.now_s >= self.next[1]:
                self.listener.at_boundary(step)
                self.next = self.listener.next_boundary(step)

    @property
    def share(self) -> float:
        return self.spent_s / self.now_s


class _Breaker:
    is_on = True

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("cost_s", [0.001, 0.02, 0.2])
def test_in_the_long_run_a_snapshot_and_the_check_before_it_keep_their_share(
    monkeypatch: pytest.MonkeyPatch, cost_s: float
) -> None:
    training = Training(monkeypatch, step_s=0.004, cost_s=cost_s)

    training.run(200_000)

    apart = [later - step for step, later in itertools.pairwise(training.snapshots)]
    assert apart[-1] == pytest.approx(cost_s / SHARE / 0.004, rel=0.01)  # 100 to 20,000 steps
    assert training.share <= SHARE + 9 * cost_s / training.now_s


def test_a_young_run_loses_a_third_of_its_steps_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(monkeypatch, step_s=0.004, cost_s=0.004)

    training.run(2000)

    steps = [0, 10, 20, 30, 45, 68, 102, 153, 230, 345, 518, 777, 1166, 1567, 1967]
    assert training.snapshots == pytest.approx(steps, abs=2)


def test_a_young_run_may_take_the_allowance_and_its_share_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = Training(monkeypatch, step_s=0.004, cost_s=0.04)

    training.run(6000)

    assert training.snapshots[:3] == pytest.approx([0, 10, 2000], abs=15)
    assert training.spent_s <= ALLOWANCE_S + SHARE * training.now_s


def test_what_another_member_has_spent_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(monkeypatch, step_s=0.004, cost_s=0.004)
    other = training.budget.join(SHARE)
    training.run(2000)
    kept = list(training.snapshots)
    other.took(0.4, training.now_s)

    training.run(30_000, first=2000)

    waited_s = 0.004 * (training.snapshots[len(kept)] - 2000)
    assert (0.4 - ALLOWANCE_S) / (2 * SHARE) <= waited_s <= 0.41 / (2 * SHARE)


def test_a_resumed_attempt_is_young_again(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(monkeypatch, step_s=0.004, cost_s=0.004)
    training.listener.goes_live(Arrived(step=70_000, path=Path(), state={}, meta={}))

    training.run(100, first=70_000)

    early = [step - 70_000 for step in training.snapshots]
    assert early == pytest.approx([1, 11, 21, 32, 48, 72], abs=2)


def test_a_step_that_takes_longer_than_snapshots_are_apart_is_no_reason_for_more_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = Training(monkeypatch, step_s=10.0, cost_s=0.004)

    training.run(100)

    assert training.snapshots == list(range(0, 100, 10))


def test_while_the_predictor_warns_the_state_is_checked_as_seldom_and_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = Training(monkeypatch, step_s=0.004, cost_s=0.004)
    training.run(2000)
    kept, checked = list(training.snapshots), len(training.checks)
    training.is_warning = True

    training.run(2000, first=2000)

    assert training.snapshots == kept
    assert 1 <= len(training.checks) - checked <= 10  # each costs half of a snapshot
    training.is_warning = False
    training.run(30, first=4000)
    assert len(training.snapshots) == len(kept) + 1  # the copy is made up for


def test_memory_is_made_after_the_first_update_and_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = Training(monkeypatch, step_s=0.004, cost_s=0.004)
    training.run(2)
    training.ring.is_making = True
    training.run(30, first=1)
    early = list(training.snapshots)
    training.ring.is_making = False

    training.run(30, first=31)

    assert training.made_ahead == [1]
    assert early == [0]
    assert 31 < training.snapshots[1] <= 41
