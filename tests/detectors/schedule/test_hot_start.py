from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from supervisor.config import load_policy
from supervisor.detectors.schedule import HotStartDetector
from supervisor.pipeline import Pipeline
from supervisor.records import Alert, StepRecord
from supervisor.settings import RunSettings


def training(
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], steps: int = 155
) -> Iterator[StepRecord]:
    """A classifier of ten kinds of noisy points, trained here."""
    torch.manual_seed(0)
    centres = torch.randn(10, 32)
    model = nn.Sequential(
        *(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    )
    optimizer = make(list(model.parameters()))
    for step in range(steps):
        labels = torch.randint(0, 10, (32,))
        loss = F.cross_entropy(model(centres[labels] + torch.randn(32, 32)), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), math.inf))
        yield StepRecord(
            step=step, loss=float(loss.detach()), grad_norm=norm, loss_seen=True,
            grad_norm_seen=True,
        )  # fmt: skip
        optimizer.step()


def alerts(records: list[StepRecord]) -> list[Alert]:
    detector = HotStartDetector()
    return [alert for record in records if (alert := detector.update(record)) is not None]


def adam(rate: float) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.Adam(parameters, rate)


def sgd(rate: float) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.SGD(parameters, rate, momentum=0.9)


@pytest.mark.parametrize("make", [adam(2e-3), adam(6e-3), sgd(0.02), sgd(1e-5)])
def test_a_training_that_learns_or_that_is_only_slow_is_left_alone(
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
) -> None:
    assert alerts(list(training(make))) == []


def test_a_rate_far_too_high_is_told_once_and_treated_where_the_policy_asks() -> None:
    records = list(training(sgd(3.0)))

    (alert,) = alerts(records)

    assert alert.step < 150
    assert alert.severity.value == "high"
    assert "gradient norm rose" in alert.message
    for policy, expected in (("default", []), ("aggressive", [("back_to_start",)])):
        judged = Pipeline(RunSettings(), load_policy(policy)).update_all(records)
        made = [j.decision.actions for j in judged if j.decision and j.record.step == alert.step]
        assert [actions for actions in made if "checkpoint" not in actions] == expected


def course(norm: float, spread: float = 0.05) -> list[StepRecord]:
    source = random.Random(0)
    return [
        StepRecord(
            step=step,
            loss=2.3 * math.exp(abs(source.gauss(0.0, spread))) if step else 2.3,
            grad_norm=1.0 if step < 5 else norm,
            loss_seen=True,
            grad_norm_seen=True,
        )
        for step in range(160)
    ]


def test_a_norm_that_has_grown_counts_only_beside_a_loss_that_stands() -> None:
    (alert,) = alerts(course(5.0))
    falling = [replace(r, loss=r.loss * 0.99**r.step) for r in course(5.0)]

    assert "has grown to 5 times" in alert.message
    assert alerts(course(1.5)) == alerts(falling) == []


def test_losses_of_single_samples_games_and_environments_are_not_judged() -> None:
    assert alerts(course(5.0, spread=1.0)) == []
    assert alerts([replace(r, others_trained=r.step > 0) for r in course(5.0)]) == []
    assert alerts([replace(r, in_environment=True) for r in course(5.0)]) == []
