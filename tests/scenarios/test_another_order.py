"""Scripts whose models and optimizers come in another order in each process, as those of a set."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tests.scenarios import runs
from tests.scenarios.loop_styles import PRELUDE
from tests.scenarios.runs import differences, plain

supervised = partial(runs.supervised, executed=True)

# The system's own random numbers are those of no attempt before, like addresses in memory.
SCRIPT = (
    PRELUDE
    + """
import random
nets = [torch.nn.Linear(X.shape[1], Y.shape[1]) for _ in range(3)]
weights = [torch.randn(X.shape[1], requires_grad=True) for _ in range(3)]
order = random.SystemRandom().sample(range(3), 3)
optimizers = {}
for step in range(120):
    rows = torch.randperm(len(X))[:16]
    for k in order:
        if ("net", k) not in optimizers:
            optimizers["net", k] = torch.optim.Adam(nets[k].parameters(), lr=0.01)
        loss = F.mse_loss(nets[k](X[rows]), Y[rows])
        loss.backward()
        optimizers["net", k].step(); optimizers["net", k].zero_grad()
    for k in order:
        if ("weight", k) not in optimizers:
            optimizers["weight", k] = torch.optim.Adam([weights[k]], lr=0.01)
        loss = ((X[rows] @ weights[k] - (k + 1)) ** 2).mean()
        loss.backward()
        optimizers["weight", k].step(); optimizers["weight", k].zero_grad()
torch.save({"nets": [n.state_dict() for n in nets], "weights": weights}, sys.argv[1])
"""
)


def test_each_gets_its_own_state_back(tmp_path: Path) -> None:
    undisturbed = plain(tmp_path / "plain", SCRIPT)
    ended = supervised(
        tmp_path / "killed",
        SCRIPT,
        settings=["checkpoint.every_steps=20", "checkpoint.background=false"],
        faults="[{kind: sigkill, step: 70}]",
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.events("resumed")
    assert not differences(ended.result(), undisturbed.result())
