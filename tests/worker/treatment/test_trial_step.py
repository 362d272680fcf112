"""A step with older weights: nothing of it stays, whatever a forward does."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from supervisor.held_memory import HeldMemory
from supervisor.ladder.trial_steps import TRIAL_OF
from supervisor.settings import SnapshotSettings
from supervisor.training_state.registry import Registry
from supervisor.training_state.snapshot import SnapshotRing
from supervisor.training_state.state import TrainingState, digest
from supervisor.worker.ground.boundary_schedule import BoundarySchedule
from supervisor.worker.ground.error_barrier import ErrorBarrier
from supervisor.worker.ground.progress import Progress
from supervisor.worker.ground.step_probe import StepProbe
from supervisor.worker.treatment import trial_step
from supervisor.worker.treatment.trial_step import OlderWeights


class Busy(nn.Module):
    """A forward that draws, counts, averages in place, and makes a buffer anew."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)
        self.calls = 0
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        self.seen = self.seen + inputs.detach().mean(0)
        found: Tensor = nn.functional.dropout(self.norm(self.layer(inputs)), 0.5)
        return found


class Counting(torch.optim.SGD):
    """Torch does not ship it, and it counts steps without gradients, too."""

    def step(self, closure: Any = None) -> None:
        super().step()
        self.param_groups[0]["count"] = self.param_groups[0].get("count", 0) + 1


class Live:
    """The parts of a worker that a trial works with, and a training of five steps."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(0)
        self.model = Busy()
        self.optimizer = Counting(self.model.parameters(), lr=0.1, momentum=0.9)
        self.registry = Registry()
        self.registry.add_model(self.model)
        self.registry.add_optimizer(self.optimizer)
        self.state = TrainingState(self.registry)
        settings = SnapshotSettings()
        self.memory = HeldMemory(settings, first={}, free=lambda: 1 << 30, at_peak=lambda: 0)
        self.ring = SnapshotRing(settings, self.memory)
        self.ring.take(0, self.state.capture(for_rollback=True), {})
        for _ in range(5):
            self.step()
        self.progress = Progress(StepProbe(), steps_done=5, backwards_of_last=1)
        self.schedule = BoundarySchedule()
        journal = SimpleNamespace(write=lambda event: None)
        trials = SimpleNamespace(is_asked=True, is_next=False)
        pipeline = SimpleNamespace(
            trial_levels=lambda step: (1.0, 2.0), ladder=SimpleNamespace(trials=trials)
        )
        self.warned: list[str] = []
        self.trial = OlderWeights(
            state=self.state,
            snapshots=self.ring,
            progress=self.progress,
            pipeline=cast(Any, pipeline),
            recorder=cast(Any, SimpleNamespace(path=folder / "none.steps")),
            schedule=self.schedule,
            warn=cast(Any, lambda told, **_: self.warned.append(told)),
            barrier=ErrorBarrier(cast(Any, journal), lambda: None, lambda: None),
        )

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(8, 3)).square().mean().backward()
        self.optimizer.step()

    def fingerprint(self) -> str:
        state = self.state.capture()
        kept = ("models", "optimizers", "attributes", "modes", "rng")
        return digest({part: state[part] for part in kept})

    def begin(self) -> str:
        return self.trial.begin(self.ring.oldest)


@pytest.fixture
def live(tmp_path: Path) -> Live:
    return Live(tmp_path)


def test_weights_are_the_older_ones_within_the_forward_alone_and_nothing_stays(live: Live) -> None:
    inputs, seen = torch.randn(8, 3), []
    older = live.ring.all()[0].state["models"]["model_0"]["layer.weight"]
    before, buffer = live.fingerprint(), live.model.seen
    present = live.model.layer.weight.detach().clone()
    assert live.begin() == ""

    def call() -> Tensor:
        seen.append(live.model.layer.weight.detach().clone())
        return cast(Tensor, live.model(inputs))

    output = live.trial.forward(call)
    seen.append(live.model.layer.weight.detach().clone())
    live.optimizer.zero_grad()
    output.square().mean().backward()
    live.progress.probe.backward_calls = 1
    assert live.trial.update_begins()
    for parameter in live.model.parameters():
        parameter.grad = None
    live.optimizer.step()
    live.trial.update_ended()

    assert torch.equal(seen[0], older)
    assert torch.equal(seen[1], present)
    assert not torch.equal(older, present)
    assert live.fingerprint() == before
    assert live.model.seen is buffer
    assert live.progress.probe.observed[TRIAL_OF] == 0.0
    assert not live.trial.is_on
    assert not live.schedule.is_leaving


def test_a_forward_that_raises_leaves_the_present_weights(live: Live) -> None:
    present = live.model.layer.weight.detach().clone()
    assert live.begin() == ""

    def call() -> Tensor:
        raise RuntimeError("the script's own")

    with pytest.raises(RuntimeError, match="own"):
        live.trial.forward(call)

    assert torch.equal(live.model.layer.weight, present)


def test_a_state_that_cannot_be_put_back_restarts_the_process(live: Live) -> None:
    assert live.begin() == ""
    live.trial.forward(lambda: live.model(torch.randn(8, 3)))
    assert live.trial.update_begins()

    live.model.layer.weight = nn.Parameter(torch.ones(4, 4))
    live.trial.update_ended()

    assert live.schedule.is_restarting
    assert "is not the one before it" in live.warned[0]


def test_a_step_without_such_a_forward_is_none(live: Live) -> None:
    assert live.begin() == ""

    assert not live.trial.update_begins()
    assert not live.trial.is_on


def test_it_is_not_made_where_it_could_not_be_proved(live: Live) -> None:
    live.progress.backwards_of_last = 2
    assert "several backwards" in live.begin()
    live.progress.backwards_of_last = 1

    live.progress.graphs.seen = True
    assert "graphs" in live.begin()
    live.progress.graphs.seen = False

    other = torch.optim.SGD([nn.Parameter(torch.ones(2))], 0.1)
    live.registry.add_optimizer(other)
    assert "several optimizers" in live.begin()


def test_it_is_not_made_where_a_tensor_has_another_shape_than_in_the_snapshot(live: Live) -> None:
    live.model.seen = torch.zeros(5)

    assert "another kind or shape" in live.begin()


def test_a_buffer_that_is_made_anew_is_given_back_between_two_forwards(live: Live) -> None:
    inputs, before, buffer = torch.randn(8, 3), live.fingerprint(), live.model.seen
    assert live.begin() == ""

    outputs = [live.trial.forward(lambda: live.model(inputs)) for _ in range(2)]
    between = live.fingerprint()
    update_without_gradients(live, outputs)

    assert between == before
    assert live.fingerprint() == before
    assert live.model.seen is buffer


def test_weights_that_the_script_rounds_for_its_forward_alone_stay_its_own(live: Live) -> None:
    weight, before = live.model.layer.weight, live.fingerprint()
    whole = weight.detach().clone()
    assert live.begin() == ""

    weight.data.copy_(whole.mul(8).round() / 8)
    output = live.trial.forward(lambda: live.model(torch.randn(8, 3)))
    weight.data.copy_(whole)
    update_without_gradients(live, [output])

    assert torch.equal(weight, whole)
    assert not live.schedule.is_leaving
    assert live.fingerprint() == before


def test_a_signal_while_the_weights_come_back_leaves_the_present_ones(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, restore, calls = live.fingerprint(), trial_step._write, []

    def interrupted(*args: Any) -> None:
        calls.append(args)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        restore(*args)

    monkeypatch.setattr(trial_step, "_write", interrupted)
    inputs = torch.zeros(8, 3)
    assert live.begin() == ""
    with pytest.raises(KeyboardInterrupt):
        live.trial.forward(lambda: live.model(inputs))

    assert live.fingerprint() == before


def update_without_gradients(live: Live, outputs: list[Tensor]) -> None:
    sum(output.square().mean() for output in outputs).backward()  # type: ignore[union-attr]
    live.progress.probe.backward_calls = 1
    assert live.trial.update_begins()
    live.optimizer.zero_grad()
    live.optimizer.step()
    live.trial.update_ended()
