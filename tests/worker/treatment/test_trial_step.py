"""What older weights would give at a step is known to the bit, and the step is the script's own."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from supervisor.held_memory import HeldMemory
from supervisor.ladder.trial_steps import TRIAL_HIGH, TRIAL_LOSS, TRIAL_LOW, TRIAL_OF
from supervisor.ranks import RankPlace
from supervisor.settings import SnapshotSettings
from supervisor.training_state.registry import Registry
from supervisor.training_state.snapshot import SnapshotRing
from supervisor.training_state.state import TrainingState
from supervisor.worker.core.breakers import Breakers
from supervisor.worker.core.progress import Progress
from supervisor.worker.core.step_probe import StepProbe
from supervisor.worker.treatment import trial_step
from supervisor.worker.treatment.older_values import OlderValues
from supervisor.worker.treatment.trial_step import OlderWeights


class Busy(nn.Module):
    """A forward that draws, counts, averages in place, writes into views, and makes a buffer
    anew."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.memory = nn.LSTM(36, 16, num_layers=2, dropout=0.2, batch_first=True)
        self.attention = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.last = nn.Linear(16, 10)
        self.calls = 0
        self.register_buffer("seen", torch.zeros(16))

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        hidden = functional.dropout(self.norm(self.convolution(inputs)).relu(), 0.3).flatten(2)
        hidden = self.attention(self.memory(hidden)[0])
        self.seen = self.seen + hidden.detach().mean((0, 1))
        means = torch.zeros(len(hidden), 16)
        for row, one in zip(means.unbind(), hidden, strict=True):
            row.copy_(one.detach().mean(0))
        found: Tensor = self.last(hidden.mean(1) + means)
        return found


def loss_of(model: nn.Module, inputs: Tensor) -> Tensor:
    decay = sum(parameter.square().sum() for parameter in model.parameters())
    loss = functional.cross_entropy(model(inputs), torch.arange(4), label_smoothing=0.1)
    return loss + 1e-3 * cast(Tensor, decay)


def beside(model: nn.Module, older: nn.Module) -> OlderValues:
    values = older.state_dict()
    pairs = [(live, values[name]) for name, live in model.state_dict(keep_vars=True).items()]
    return OlderValues(pairs, lambda size: True)


@pytest.mark.parametrize("is_autocast", [False, True])
def test_the_loss_is_that_of_the_older_weights_and_nothing_else_differs(is_autocast: bool) -> None:
    torch.manual_seed(0)
    older, model = Busy(), Busy()
    inputs, plain, apart = torch.randn(4, 1, 8, 8), copy.deepcopy(model), copy.deepcopy(older)

    def step(trained: Busy, values: OlderValues | None = None) -> list[Tensor]:
        torch.manual_seed(5)
        with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
            if values is not None:
                values.start()
            loss = loss_of(trained, inputs)
        if values is not None:
            values.stop()
        loss.backward()
        gradients = [cast(Tensor, parameter.grad) for parameter in trained.parameters()]
        return [loss, *gradients, *trained.buffers(), torch.get_rng_state()]

    wanted, expected = step(apart)[0], step(plain)
    values = beside(model, older)
    found = step(model, values)

    assert values.refusal == ""
    assert values.value(found[0]) == wanted.item()
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert model.calls == 1
    assert all(
        torch.equal(one, other)
        for one, other in zip(older.parameters(), apart.parameters(), strict=True)
    )


def test_other_shapes_end_it_and_not_the_step() -> None:
    torch.manual_seed(0)
    model, older = nn.Linear(3, 3), nn.Linear(3, 3)
    values = beside(model, older)
    values.start()
    found = model(torch.randn(64, 3))
    chosen = found[found > 0.5]
    values.stop()

    assert "another shape" in values.refusal
    assert values.value(chosen.sum()) is None
    assert torch.equal(chosen, found[found > 0.5])


def test_a_mode_that_the_script_begins_meanwhile_stays_and_one_of_before_forbids_it() -> None:
    model, older = nn.Linear(3, 3), nn.Linear(3, 3)
    values, late = beside(model, older), beside(model, older)
    counter = FlopCounterMode(display=False)

    values.start()
    with counter:
        loss = model(torch.randn(8, 3)).square().mean()
        values.stop()
        late.start()
        model(torch.randn(8, 3))

    assert values.value(loss) is not None
    assert counter.get_total_flops() == 2 * (2 * 8 * 3 * 3)
    assert "looks at operators itself" in late.refusal
    assert torch._C._len_torch_dispatch_stack() == 0


class Live:
    """The parts of a worker that a trial works with, and a training of five steps."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(3, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.registry = Registry()
        self.registry.add_model(self.model)
        self.registry.add_optimizer(self.optimizer)
        state = TrainingState(self.registry)
        settings = SnapshotSettings()
        self.memory = HeldMemory(settings, first={}, free=lambda: 1 << 30, at_peak=lambda: 0)
        self.memory.has_trained = True
        self.ring = SnapshotRing(settings, self.memory)
        self.ring.take(0, state.capture(for_rollback=True), {})
        self.older = copy.deepcopy(self.model)
        self.inputs = torch.randn(8, 3)
        for _ in range(5):
            self.optimizer.zero_grad()
            self.model(self.inputs).square().mean().backward()
            self.optimizer.step()
        self.probe = StepProbe()
        self.progress = Progress(self.probe, steps_done=5)
        trials = SimpleNamespace(is_asked=True, is_next=False)
        ladder = SimpleNamespace(trials=trials)
        pipeline = SimpleNamespace(level_at=lambda step: 1.0, ladder=ladder)
        context: Any = SimpleNamespace(
            progress=self.progress,
            place=RankPlace(),
            is_experiment=False,
            breakers=Breakers(
                cast(Any, SimpleNamespace(write=lambda event: None)), lambda: None, lambda: None
            ),
        )
        recorder: Any = SimpleNamespace(path=folder / "none.steps")
        self.trial = OlderWeights(context, state, self.memory, cast(Any, pipeline), recorder)

    def start(self) -> str:
        return self.trial.start(self.ring.oldest)

    def loss(self) -> Tensor:
        output: Tensor = self.trial.forward(lambda: self.model(self.inputs))
        return output.square().mean()


@pytest.fixture
def live(tmp_path: Path) -> Live:
    return Live(tmp_path)


def test_the_losses_of_all_backwards_of_a_step_are_one_figure_of_its_record(live: Live) -> None:
    wanted = 2.0 * live.older(live.inputs).square().mean().item()
    assert live.start() == ""

    first = live.loss()
    live.trial.backward_begins(first, None)
    live.trial.backward_begins([live.loss()], None)
    live.probe.loss = 7.0
    live.trial.update_begins()

    seen = live.probe.observed
    assert seen[TRIAL_LOSS] == pytest.approx(wanted)
    assert (seen[TRIAL_OF], seen[TRIAL_LOW], seen[TRIAL_HIGH]) == (0.0, 1.0, 7.0)
    assert not live.trial.is_on
    assert live.memory.copies == 1


def test_a_loss_scalers_factor_is_left_out(live: Live) -> None:
    assert live.start() == ""

    loss = live.loss()
    scaled = 1024.0 * loss
    live.trial.backward_begins(scaled, (scaled, loss))
    live.trial.update_begins()

    wanted = live.older(live.inputs).square().mean().item()
    assert live.probe.observed[TRIAL_LOSS] == wanted


def test_what_raises_gradients_or_an_update_ends_the_looking(live: Live) -> None:
    def raises() -> Tensor:
        raise RuntimeError("the script's own")

    for ends in (live.trial.gradients_begin, live.trial.update_begins):
        assert live.start() == ""
        live.loss()
        assert torch._C._len_torch_dispatch_stack() == 1
        ends()
        assert torch._C._len_torch_dispatch_stack() == 0
    assert live.start() == ""
    with pytest.raises(RuntimeError, match="own"):
        live.trial.forward(raises)
    assert torch._C._len_torch_dispatch_stack() == 0
    assert live.probe.observed == {}


def test_a_step_without_a_loss_that_was_followed_is_none(live: Live) -> None:
    assert live.start() == ""

    live.trial.backward_begins(torch.ones(()), None)
    live.trial.update_begins()

    assert live.probe.observed == {}
    assert not live.trial.is_on


def test_it_is_not_made_where_it_could_not_answer(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_step, "has_compiled", lambda: True)
    assert "compiled" in live.start()
    monkeypatch.undo()

    monkeypatch.setattr(live.memory, "allows", lambda *_: False)
    assert "no room" in live.start()
    monkeypatch.undo()

    live.model.register_buffer("more", torch.ones(4))
    assert "another kind or shape" in live.start()

    other = torch.optim.SGD([nn.Parameter(torch.ones(2))], 0.1)
    live.registry.add_optimizer(other)
    assert "parameters that no model has" in live.start()
