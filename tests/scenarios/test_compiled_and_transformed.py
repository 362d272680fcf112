"""Compiled updates and transforms of torch.func: supervised like any training, to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from supervisor.storage.steps.flight_recorder import FlightReader
from tests.scenarios.runs import Ended, differences, plain, supervised

COMPILED_STEP = """
import sys
import torch
from torch import nn
torch.manual_seed(2)
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 4))
optimizer = torch.optim.SGD(net.parameters(), torch.tensor(0.05), momentum=0.9)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
@torch.compile(backend="aot_eager")
def step(x, y):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    return loss.detach()
best = 9.0
for i in range(24):
    x = torch.randn(16, 8)
    loss = step(x, x[:, :4].argmax(1)).item()
    best = min(best, loss)
    schedule.step()
    if i % 8 == 3:
        net.eval(); best = min(best, net(x).std().item()); net.train()
torch.save({"net": net.state_dict(), "best": best}, sys.argv[1])
"""
PER_SAMPLE = """
import sys
import torch
from torch import nn
from torch.func import functional_call, grad_and_value, jacrev, vjp, vmap
torch.manual_seed(3)
net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.1), nn.Linear(12, 3))
params = {k: v.detach().clone().requires_grad_() for k, v in net.named_parameters()}
optimizer = torch.optim.AdamW(params.values(), 1e-2)
def loss_of(p, x, y):
    out = functional_call(net, p, (x.unsqueeze(0),))
    return nn.functional.cross_entropy(out, y.unsqueeze(0))
each = vmap(grad_and_value(loss_of), in_dims=(None, 0, 0), randomness="different")
for i in range(24):
    x = torch.randn(16, 6); y = x[:, :3].argmax(1)
    now = {k: v.detach() for k, v in params.items()}
    gradients, losses = each(now, x, y)
    _, pull = vjp(lambda z: functional_call(net, now, (z,)), x[:2])
    slope = jacrev(lambda z: functional_call(net, now, (z,)))(x[0])
    optimizer.zero_grad()
    for name, p in params.items():
        p.grad = gradients[name].clamp(-1, 1).mean(0) + 1e-3 * torch.randn_like(p)
        p.grad += 1e-4 * (slope.mean() + pull(torch.ones(2, 3))[0].mean())
    optimizer.step()
torch.save({k: v.detach() for k, v in params.items()}, sys.argv[1])
"""
META_LEARNING = """
import sys
import torch
from torch import nn
from torch.func import functional_call
torch.manual_seed(5)
net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
for i in range(24):
    w = torch.randn(2, 1); fast = dict(net.named_parameters())
    for k in range(2):
        x = torch.randn(12, 2)
        loss = ((functional_call(net, fast, x) - x @ w) ** 2).mean()
        if k == 0:
            found = torch.autograd.grad(loss, (v for v in fast.values()), create_graph=True)
            fast = {n: v - 0.05 * g for (n, v), g in zip(fast.items(), found)}
    optimizer.zero_grad(); loss.backward(); optimizer.step()
torch.save(net.state_dict(), sys.argv[1])
"""
SCRIPTS = {
    "compiled step": COMPILED_STEP,
    "per-sample gradients": PER_SAMPLE,
    "meta-learning": META_LEARNING,
}


@pytest.mark.parametrize(
    "name",
    [
        "compiled step",
        "per-sample gradients",
        pytest.param("meta-learning", marks=pytest.mark.exhaustive),
    ],
)
def test_a_killed_one_is_judged_step_by_step_and_resumes_exactly(tmp_path: Path, name: str) -> None:
    reference = plain(tmp_path / "plain", SCRIPTS[name])

    ended = supervised(
        tmp_path / "killed",
        SCRIPTS[name],
        settings=("checkpoint.every_steps=6", "checkpoint.background=false"),
        faults="[{kind: sigkill, step: 15}]",
    )

    assert ended.returncode == 0, ended.stderr
    assert [(e["from_step"], e["exactness"]) for e in ended.events("resumed")] == [(12, "exact")]
    assert not differences(ended.result(), reference.result())
    warnings = [event["message"] for event in ended.events("warning")]
    if torch.__version__.startswith("2.6"):  # its compile workers outlive the training
        warnings = [one for one in warnings if "left behind" not in one]
    assert warnings == []
    assert _steps(ended) == [*range(16), *range(12, 24)]


def _steps(ended: Ended) -> list[int]:

    with FlightReader(ended.run_dir / "steps" / "rank_0.steps") as reader:
        return [int(step) for step in reader.read()["step"]]
