"""Reinforcement learning: the loss grows with the rewards, and nothing is sick."""

from __future__ import annotations

from pathlib import Path

from tests.scenarios.runs import differences, supervised, train_plainly

CRITIC = """
import torch
from torch import nn
import gymnasium  # a library of environments, as far as its name goes

torch.manual_seed(0)
critic = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(critic.parameters(), lr=3e-3)
for update in range(240):
    episode = 8.0 * 1.02 ** update  # the policy learns: its returns grow
    observation = torch.randn(64, 4)
    returns = episode * (1.0 + 0.3 * observation[:, :1])
    loss = (critic(observation) - returns).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save(critic.state_dict(), "out.pt")
"""


def prepared(folder: Path) -> Path:
    folder.mkdir()
    (folder / "gymnasium.py").write_text("")
    return folder


def test_a_critic_whose_loss_grows_with_the_rewards_is_let_be(tmp_path: Path) -> None:
    expected = train_plainly(prepared(tmp_path / "plain"), CRITIC)

    ended = supervised(prepared(tmp_path / "supervised"), CRITIC)

    assert [event["name"] for event in ended.events("action")] == []
    assert differences(expected.result(), ended.result()) == []


def test_the_same_losses_without_an_environment_are_trouble(tmp_path: Path) -> None:
    ended = supervised(prepared(tmp_path / "run"), CRITIC, settings=("in_environment=false",))

    assert ended.events("action") != []
