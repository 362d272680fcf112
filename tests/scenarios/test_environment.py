"""Reinforcement learning: the loss grows with the rewards, and nothing is sick."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.runs import differences, supervised, train_plainly

LIBRARY = "import gymnasium  # a library of environments, as far as its name goes"
NAN = "if update == 140: returns[3] = float('nan')"
ACTOR_CRITIC = """
import math
import torch
from torch import nn
import supervisor
{library}

torch.manual_seed(0)
body = nn.Sequential(nn.Linear(4, 32), nn.Tanh())
actor, critic = nn.Linear(32, 2), nn.Linear(32, 1)
model = nn.ModuleList([body, actor, critic])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
poles = 8
state, age = torch.zeros(poles, 4), torch.zeros(poles)

def act(state, push):  # a pole on a cart, 0.05 s at a time
    x, speed, angle, spin = state.unbind(1)
    force = 10.0 * (2.0 * push - 1.0)
    turn = 20.0 * angle.sin() - 1.5 * force * angle.cos() / 1.1
    spin = spin + 0.05 * turn
    speed = speed + 0.05 * (force / 1.1 - 0.05 * turn)
    return torch.stack([x + 0.05 * speed, speed, angle + 0.05 * spin, spin], 1)

for update in range({updates}):
    states, pushes, alive, ages = [], [], [], []
    for _ in range(12):
        with torch.no_grad():
            odds = actor(body(state)).softmax(1)
        push = torch.multinomial(odds, 1)[:, 0]
        states.append(state), pushes.append(push)
        state, age = act(state, push), age + 1
        fell = (state[:, 2].abs() > 0.3) | (state[:, 0].abs() > 3.0)
        ages.append(age[fell])
        alive.append((~fell).float())
        state = torch.where(fell[:, None], 0.05 * torch.randn_like(state), state)
        age = torch.where(fell, torch.zeros_like(age), age)
    ended = torch.cat(ages)
    if {observed} and len(ended):
        supervisor.observe(reward=ended.mean())
    with torch.no_grad():
        back = critic(body(state))[:, 0]
    returns = []
    for living in reversed(alive):
        back = living * (1.0 + 0.99 * back)
        returns.insert(0, back)
    returns, seen = torch.cat(returns), torch.cat(states)
    {fault}
    hidden = body(seen)
    value = critic(hidden)[:, 0]
    chosen = actor(hidden).log_softmax(1).gather(1, torch.cat(pushes)[:, None])[:, 0]
    advantage = (returns - value).detach()
    loss = (returns - value).square().mean() - (advantage * chosen).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save(model.state_dict(), "out.pt")
"""


def script(*, library: bool, observed: bool, updates: int = 240, fault: str = "") -> str:
    told = LIBRARY if library else ""
    return ACTOR_CRITIC.format(
        library=told, observed=observed, updates=updates, fault=fault or "pass"
    )


def prepared(folder: Path) -> Path:
    folder.mkdir()
    (folder / "gymnasium.py").write_text("")
    return folder


@pytest.mark.parametrize("library", [True, False])
def test_an_actor_critic_whose_loss_grows_with_its_rewards_is_let_be(
    tmp_path: Path, library: bool
) -> None:
    text = script(library=library, observed=not library)
    expected = train_plainly(prepared(tmp_path / "plain"), text)

    ended = supervised(prepared(tmp_path / "run"), text, options=("--policy", "aggressive"))

    assert len(ended.found("reinforcement learning")) == 1
    assert ended.actions() == []
    assert differences(expected.result(), ended.result()) == []


def test_the_same_losses_are_trouble_where_nobody_says_what_they_are(tmp_path: Path) -> None:
    text = script(library=True, observed=True)
    options = ("--policy", "aggressive")

    ended = supervised(
        prepared(tmp_path / "run"), text, options=options, settings=("in_environment=false",)
    )

    assert {*ended.actions()} - {"checkpoint"}


def test_a_nan_is_treated_in_reinforcement_learning_too(tmp_path: Path) -> None:
    text = script(library=True, observed=True, updates=160, fault=NAN)

    ended = supervised(prepared(tmp_path / "run"), text)

    assert ended.actions() == ["skip_update"]
    assert all(value.isfinite().all() for value in ended.result().values())
