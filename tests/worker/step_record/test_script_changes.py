"""Which changes of the script's own explain a loss that rises."""

from __future__ import annotations

import torch
from torch import nn

from supervisor.detectors.statistics.changes import (
    ANOTHER_OPTIMIZER,
    CHANGE,
    OTHER_PARAMETERS,
    REFERENCE,
    REWRITTEN,
)
from supervisor.settings import SnapshotSettings
from supervisor.training_state.registry import Registry
from supervisor.training_state.snapshot import SnapshotRing
from supervisor.training_state.state import TrainingState
from supervisor.worker.corruption.update_watch import UpdateWatch
from supervisor.worker.step_record.script_changes import LOSSES, ScriptChanges

EVERY = 10


class Training:
    """A network and one that it is trained against; snapshots come every ten steps."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model, self.target = nn.Linear(4, 8), nn.Linear(4, 8)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        registry = Registry()
        for model in (self.model, self.target):
            registry.add_model(model)
        registry.add_optimizer(self.optimizer)
        self.watch = UpdateWatch(registry)
        self.snapshots = SnapshotRing(SnapshotSettings())
        self.state = TrainingState(registry)
        self.changes = ScriptChanges(registry, self.watch, self.snapshots)
        self.step = 0

    def go(self, loss: float = 1.0, steps: int = 1, size: int = 2) -> dict[str, float]:
        found: dict[str, float] = {}
        for _ in range(steps):
            if self.step % EVERY == 0:
                self.snapshots.take(self.step, self.state.capture(for_rollback=True), {})
                self.watch.checked()
            found = self.changes.judge(self.step, loss, self.optimizer, size)
            for parameter in self.model.parameters():
                parameter.grad = torch.randn_like(parameter)
            self.watch.update_begins(self.optimizer, 1.0, float("inf"))
            self.optimizer.step()
            self.watch.update_ended(self.optimizer)
            self.step += 1
        return found

    def copy(self) -> None:
        self.target.load_state_dict(self.model.state_dict())


def test_a_target_that_takes_over_the_weights_explains_a_higher_loss() -> None:
    training = Training()
    training.go(steps=57)
    training.copy()

    assert training.go(loss=2.0) == {CHANGE: REFERENCE}
    assert training.go(loss=3.0) == {}


def test_nothing_is_said_while_the_loss_is_as_always() -> None:
    training = Training()
    training.go(steps=57)
    training.copy()

    assert training.go(loss=1.0, steps=5) == {}
    assert training.go(loss=2.0) == {}


def test_a_target_that_follows_at_each_step_explains_nothing() -> None:
    training = Training()
    for _ in range(2 * LOSSES):
        training.copy()
        training.go()
    training.copy()

    assert training.go(loss=2.0) == {}


def test_weights_that_begin_anew_explain_it() -> None:
    for steps in (57, 60):  # within a window, and right where a snapshot is taken
        training = Training()
        training.go(steps=steps)
        training.model.reset_parameters()

        assert training.go(loss=2.0) == {CHANGE: REWRITTEN}
        assert training.go(loss=3.0) == {}


def test_weights_that_have_grown_explain_nothing() -> None:
    training = Training()
    training.go(steps=57)
    with torch.no_grad():
        training.model.weight.mul_(100.0)

    assert training.go(loss=2.0) == {}


def test_weights_that_are_clamped_at_each_step_explain_nothing() -> None:
    training = Training()
    for _ in range(2 * LOSSES):
        training.go()
        with torch.no_grad():
            training.model.weight.clamp_(-1.0, 1.0)

    assert training.go(loss=2.0) == {}


def test_what_a_rollback_writes_is_ours() -> None:
    training = Training()
    training.go(steps=57)
    training.copy()
    training.model.reset_parameters()
    training.watch.begin_anew()

    assert training.go(loss=2.0) == {}


def test_other_parameters_explain_it() -> None:
    training = Training()
    training.go(steps=57)

    assert training.go(loss=2.0, size=4) == {CHANGE: OTHER_PARAMETERS}


def test_another_optimizer_explains_it() -> None:
    training = Training()
    training.go(steps=57)
    training.optimizer = torch.optim.Adam(training.model.parameters(), lr=1e-3)

    assert training.go(loss=2.0) == {CHANGE: ANOTHER_OPTIMIZER}
