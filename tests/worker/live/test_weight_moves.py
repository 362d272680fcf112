"""Weights that went on as always while the loss leaps, and those that did not."""

from __future__ import annotations

import math

import torch
from torch import nn

from supervisor.ladder.single_leap import MOVED, USUAL
from supervisor.settings import SnapshotSettings
from supervisor.training_state.registry import Registry
from supervisor.training_state.snapshot import SnapshotRing
from supervisor.training_state.state import TrainingState
from supervisor.worker.live.weight_moves import LOOKS, WeightMoves

EVERY = 10


class Training:
    """A network with a normalisation; snapshots come every ten steps."""

    def __init__(self, rate: float = 1e-3) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=rate)
        registry = Registry()
        registry.add_model(self.model)
        registry.add_optimizer(self.optimizer)
        self.snapshots = SnapshotRing(SnapshotSettings())
        self.state = TrainingState(registry)
        self.told: list[str] = []
        self.moves = WeightMoves(registry, self.snapshots, tell=self.told.append)
        self.step = 0

    def go(self, loss: float = 1.0, steps: int = 1) -> dict[str, float]:
        found: dict[str, float] = {}
        for _ in range(steps):
            if self.step % EVERY == 0:
                self.snapshots.take(self.step, self.state.capture(for_rollback=True), {})
            self.optimizer.zero_grad()
            self.model(torch.randn(16, 4)).square().sum().backward()
            found = self.moves.judge(self.step, loss)
            self.optimizer.step()
            self.step += 1
        return found


def test_weights_that_went_on_as_always_are_told_at_a_leap() -> None:
    for steps in (25, 57, 60):  # the newest snapshot is of this step, or of some steps before
        training = Training()
        training.go(steps=steps)

        assert 0.0 < training.go(loss=2.0)[MOVED] <= USUAL


def test_nothing_is_looked_at_without_a_leap() -> None:
    training = Training()

    assert training.go(steps=57) == {}
    assert training.go(loss=1.4) == {}
    assert training.go(loss=math.nan) == {}


def test_a_level_that_stays_is_looked_at_for_some_steps() -> None:
    training = Training()
    training.go(steps=57)

    looked = [bool(training.go(loss=2.0)) for _ in range(10)]

    assert looked == [True] * LOOKS + [False] * (10 - LOOKS)


def test_a_single_high_loss_is_not_the_new_level() -> None:
    training = Training()
    training.go(steps=57)
    training.go(loss=5.0)
    training.go()

    assert MOVED in training.go(loss=2.0)


def test_a_weight_that_was_damaged_has_moved() -> None:
    training = Training()
    training.go(steps=57)
    with torch.no_grad():
        training.model[0].weight.view(-1)[3] *= 1024.0

    assert training.go(loss=2.0)[MOVED] > 10.0 * USUAL


def test_an_update_that_was_far_too_large_has_moved_them() -> None:
    training = Training()
    training.go(steps=56)
    training.optimizer.param_groups[0]["lr"] *= 300.0
    training.go()

    assert training.go(loss=2.0)[MOVED] > USUAL


def test_nothing_is_known_of_weights_that_are_in_no_snapshot() -> None:
    training = Training()
    training.go(steps=EVERY)
    assert training.go(loss=2.0) == {}

    training = Training()
    training.go(steps=57)
    training.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    assert training.go(loss=2.0) == {}


def test_an_error_ends_the_looks_and_is_told() -> None:
    training = Training()
    training.go(steps=57)
    training.snapshots.all = lambda: 1 / 0  # type: ignore[assignment, return-value]

    assert training.go(loss=2.0) == {}
    assert len(training.told) == 1
    assert training.go(loss=9.0) == {}
    assert len(training.told) == 1
