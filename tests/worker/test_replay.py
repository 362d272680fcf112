"""The replay on its own, without a process around it."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from supervisor.storage.steps.replay_log import ReplayLogWriter
from supervisor.storage.steps.replay_log_reader import ReplayLogReader
from supervisor.training_state.registry import Registry
from supervisor.worker.core.boundary_clock import seen_closure
from supervisor.worker.core.call_state import CallState
from supervisor.worker.core.training_hooks import TrainingHooks
from supervisor.worker.replay import Replay


def _arrive(steps: int, why: str | None) -> TrainingHooks:
    raise AssertionError((steps, why))


def _train(replay: Replay, registry: Registry, width: int) -> None:
    """A whole training of a model of its own, as one fold of a cross-validation."""
    model, x = nn.Linear(3, width), torch.ones(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    registry.add_optimizer(optimizer)
    output = replay.forward(model, (x,), {}, lambda: model._call_impl(x))
    assert output.shape == (2, width)
    replay.backward(output, lambda root: None)
    assert [p.grad.shape for p in model.parameters() if p.grad is not None] == [
        (width, 3),
        (width,),
    ]


class _Force(nn.Module):
    """Asks for a gradient within its forward, as models of molecules and potentials do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        return torch.autograd.grad((x**3).sum(), x, create_graph=True)[0]


def test_a_forward_that_asks_for_a_gradient_is_replayed() -> None:
    replay = Replay(
        call_state=CallState(),
        registry=Registry(),
        replay_log=ReplayLogReader.empty(),
        target=5,
        arrive=_arrive,
    )
    model, x = _Force(), torch.ones(2, 3)

    outputs = [replay.forward(model, (x,), {}, lambda: model._call_impl(x)) for _ in range(2)]

    assert [o.tolist() for o in outputs] == [torch.full((2, 3), 3.0).tolist()] * 2
    assert outputs[0].requires_grad


def test_a_replay_gives_signs_of_life() -> None:
    signs: list[int] = []
    registry = Registry()
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters())
    replay = Replay(
        call_state=CallState(),
        registry=registry,
        replay_log=ReplayLogReader.empty(),
        target=5,
        arrive=_arrive,
        heartbeat=signs.append,
    )

    for _ in range(2):
        replay.loading.batch(torch.ones(4, 3))
        replay.forward(model, (torch.ones(4, 3),), {}, lambda: None)
        replay.before_update(optimizer, (), {})
        replay.after_update(optimizer, None)

    assert signs == [0, 0, 1, 1, 1, 2]


@pytest.mark.parametrize(("steps", "expected"), [(1, None), (8, 1.0), (108, 207 / 107)])
def test_it_is_known_what_a_replayed_step_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, expected: float | None
) -> None:
    """The first ones are slow; of many the mean, in which epochs' beginnings are."""
    times = itertools.accumulate([0.0, 51.0, 51.0, 1.0, *[1.0] * 200])
    monkeypatch.setattr("supervisor.worker.replay.time.perf_counter", lambda: next(times))
    recorded = ReplayLogWriter(tmp_path / "a.tape")
    for step in range(steps):
        recorded.append_step(step, 0.1, 0, 0, 0)
    replay_log = ReplayLogReader(tmp_path / "a.tape", end=recorded.write_out())
    recorded.close()
    replay = Replay(
        call_state=CallState(),
        registry=Registry(),
        replay_log=replay_log,
        target=500,
        arrive=_arrive,
    )
    optimizer = torch.optim.SGD(nn.Linear(3, 2).parameters(), lr=0.1)

    for _ in range(steps):
        replay.before_update(optimizer, (), {})
        replay.after_update(optimizer, None)

    replay_log.close()
    assert replay.mismatch is None
    assert replay.step_s == (expected if expected is None else pytest.approx(expected))


def test_a_resumed_closure_is_judged_after_the_evaluation_that_was_judged_before(
    tmp_path: Path,
) -> None:
    """Else its loss is not that of the recorded step, and an exact resume is called approximate."""
    recorded = ReplayLogWriter(tmp_path / "a.tape")
    recorded.append_step(0, math.nan, 3, 3, 0)
    replay_log = ReplayLogReader(tmp_path / "a.tape", end=recorded.write_out())
    recorded.close()
    replay = Replay(
        call_state=CallState(),
        registry=Registry(),
        replay_log=replay_log,
        target=5,
        arrive=_arrive,
    )
    optimizer = torch.optim.Optimizer([nn.Parameter(torch.zeros(1))], {})
    planned: list[int] = []

    def closure() -> torch.Tensor:
        replay.backward(torch.zeros(()), lambda root: None)
        return torch.zeros(())

    replay.before_update(optimizer, (closure,), {})
    replay.after_update(optimizer, None)
    replay_log.close()
    taken, _ = seen_closure(
        replay.clock, CallState(), optimizer, (lambda: None,), {}, planned.append
    )
    taken[0]()
    taken[0]()
    assert not planned
    taken[0]()
    assert planned == [0]


def test_models_that_come_one_after_another_are_not_taken_for_each_other() -> None:
    registry = Registry()
    replay = Replay(
        call_state=CallState(),
        registry=registry,
        replay_log=ReplayLogReader.empty(),
        target=5,
        arrive=_arrive,
    )

    for width in range(1, 40):  # the memory of one is given to the next sooner or later
        _train(replay, registry, width)
