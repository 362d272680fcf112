"""What lies between two steps: values computed before the forward, gradients that stay or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.loop_styles import PRELUDE
from tests.scenarios.runs import differences, supervised, train_plainly

BEFORE = (
    PRELUDE
    + """
bare, mean = torch.nn.Parameter(torch.ones(X.shape[1])), torch.zeros(())
model = make_model(0.0)
optimizer = torch.optim.Adam([bare, *model.parameters()], lr=0.02)
for step in range(30):
    rows = torch.randint(0, len(X), (16,))
    loss = {0}
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    mean = 0.9 * mean + 0.1 * loss.detach()
torch.save({{"bare": bare.detach(), "mean": mean, **model.state_dict()}}, sys.argv[-1])
"""
)
UNCLEARED = (
    PRELUDE
    + """
body, head = torch.nn.Linear(X.shape[1], 8), torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
for step in range(30):
    rows = torch.randint(0, len(X), (16,))
    optimizer.zero_grad()
    F.mse_loss(head(body(X[rows]).tanh()).squeeze(-1), Y[rows].reshape(-1)).backward()
    torch.nn.utils.clip_grad_norm_([*body.parameters(), *head.parameters()], 1.0)
    optimizer.step()
torch.save(torch.nn.ModuleList([body, head]).state_dict(), sys.argv[-1])
"""
)
LEFT_OUT = (
    PRELUDE
    + """
import random
random.seed(3)
layers, head = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3)), make_model(0.0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__(); self.layers = layers; self.last = torch.nn.Linear(8, 1)
    def forward(self, x):
        for layer in self.layers:
            if random.random() < 0.6: x = x + layer(x)
        return self.last(x)
model = Net()
leads = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
follows = torch.optim.SGD(head.parameters(), lr=0.02)
for step in range(30):
    x = torch.randn(16, 8)
    loss = (model(x) ** 2).mean()
    loss.backward(); leads.step(); leads.zero_grad()
    follows.zero_grad()
    F.mse_loss(head(X), Y).backward(); follows.step()
torch.save({n: p.detach() for n, p in model.named_parameters()}, sys.argv[-1])
"""
)
IN_A_GENERATOR = (
    PRELUDE
    + """
model = make_model(0.0)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
def minibatches():
    advantages = Y.reshape(-1) - model(X).detach().reshape(-1)
    advantages = (advantages - advantages.mean()) / advantages.std()
    for rows in torch.randperm(len(X)).reshape(12, -1):
        yield rows, advantages[rows]
for _ in range(3):
    for rows, wanted in minibatches():
        loss = F.mse_loss(model(X[rows]).reshape(-1), wanted)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
torch.save(model.state_dict(), sys.argv[-1])
"""
)
IN_ZIPS = (
    PRELUDE
    + """
model, mean = make_model(0.0), torch.zeros(())
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
for epoch in range(2):
    wanted = (Y.reshape(-1) - model(X).detach().reshape(-1)).clamp(-1, 1)
    for part, goal in zip((X - mean).split(32), wanted.split(32)):
        for number, x in enumerate((part + 0.1 * mean).split(8)):
            y = goal[8 * number : 8 * number + 8]
            loss = F.mse_loss(model(x).reshape(-1), y)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            mean = 0.9 * mean + 0.1 * loss.detach()
torch.save({"mean": mean, **model.state_dict()}, sys.argv[-1])
"""
)
GRAPH = "(model(X[rows] * torch.tanh(bare)).reshape(-1) - Y[rows].reshape(-1)).pow(2).mean()"
STATEMENT = (
    "((Y[rows].reshape(-1) - mean) * model(X[rows]).reshape(-1)).mean() + model(X).pow(2).mean()"
)


@pytest.mark.parametrize(
    "script",
    [
        *(BEFORE.format(GRAPH), BEFORE.format(STATEMENT), UNCLEARED, LEFT_OUT),
        *(IN_A_GENERATOR, IN_ZIPS),
    ],
    ids=[
        *("graph", "statement", "uncleared gradients", "no gradient where a layer is left out"),
        *("in a generator that only a loop holds", "in two loops over what no variable holds"),
    ],
)
def test_what_lies_between_two_steps_resumes_exactly(tmp_path: Path, script: str) -> None:
    undisturbed = train_plainly(tmp_path / "plain", script)

    ended = supervised(
        tmp_path / "killed",
        script,
        settings=("checkpoint.every_steps=4", "checkpoint.background=false"),
        faults="[{kind: sigkill, step: 23}]",
    )

    assert ended.returncode == 0, ended.stderr
    assert [e["exactness"] for e in ended.events("resumed")] == ["exact"]
    assert differences(undisturbed.result(), ended.result()) == []


EPISODES = (
    PRELUDE
    + """
actor, critic = make_model(0.0), make_model(0.0)
slow, fast = (torch.optim.Adam(m.parameters(), lr=0.02) for m in (actor, critic))
for step in range(36):
    if step % 6 == 0: kept = []
    rows = torch.randint(0, len(X), (16,))
    kept.append((actor(X[rows]) * Y[rows]).mean())
    loss = F.mse_loss(critic(X[rows]), Y[rows])
    fast.zero_grad(); loss.backward(); fast.step()
    if step % 6 == 5:
        slow.zero_grad(); (torch.stack(kept) ** 2).sum().backward(); slow.step()
torch.save(torch.nn.ModuleList([actor, critic]).state_dict(), sys.argv[-1])
"""
)


def test_a_checkpoint_waits_until_no_graph_is_kept_across_updates(tmp_path: Path) -> None:
    undisturbed = train_plainly(tmp_path / "plain", EPISODES)

    ended = supervised(
        tmp_path / "killed",
        EPISODES,
        settings=("checkpoint.every_steps=4", "checkpoint.background=false"),
        faults="[{kind: sigkill, step: 29}]",
    )

    assert ended.returncode == 0, ended.stderr
    assert [(e["exactness"], e["step"]) for e in ended.events("resumed")] == [("exact", 24)]
    assert differences(undisturbed.result(), ended.result()) == []


def test_before_that_is_known_a_list_of_graphs_makes_the_resume_approximate(tmp_path: Path) -> None:
    ended = supervised(
        tmp_path / "killed",
        EPISODES,
        settings=("checkpoint.every_steps=4", "checkpoint.background=false"),
        faults="[{kind: sigkill, step: 5}]",
    )

    assert ended.returncode == 0, ended.stderr
    (resumed,) = ended.events("resumed")
    assert resumed["exactness"] == "approximate"
    assert "main.kept[0] keeps its graph across updates" in resumed["reason"]
