"""Optimizers that step within a backward, in hooks behind each parameter's gradient."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.loop_styles import PRELUDE
from tests.scenarios.runs import differences, supervised, train_plainly

IN_TURN = """
import random
random.seed(3)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(X.shape[1], 16), nn.Linear(16, Y.shape[1])
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
    def forward(self, x):
        x = F.dropout(self.first(x), 0.1, self.training)
        for block in self.blocks:
            if random.random() < 0.7: x = x + torch.tanh(block(x))
        return self.last(x)
model = Net(); skipped = 0
optimizers = {p: torch.optim.Adam([p], lr=1e-2) for p in model.parameters()}
schedules = {p: torch.optim.lr_scheduler.ExponentialLR(o, 0.99) for p, o in optimizers.items()}
def update(p):
    global skipped
    if p.grad.norm().item() > 1.5: skipped += 1
    else: optimizers[p].step(); schedules[p].step()
    optimizers[p].zero_grad()
for p in model.parameters(): p.register_post_accumulate_grad_hook(update)
for step in range(24):
    i = torch.randint(0, 96, (8,))
    F.mse_loss(model(X[i]), Y[i]).backward()
result = {**model.state_dict(), "skipped": torch.tensor(skipped)}
"""
WITHOUT_A_MODULE = """
weights = [torch.randn(X.shape[1], 8), torch.randn(8, Y.shape[1])]; norms = []
optimizers = {w.requires_grad_(): torch.optim.SGD([w], lr=1e-2, momentum=0.9) for w in weights}
def update(w):
    norms.append(w.grad.norm().item()); optimizers[w].step(); w.grad = None
for w in weights: w.register_post_accumulate_grad_hook(update)
for step in range(24):
    i = torch.randint(0, 96, (8,))
    F.mse_loss(torch.tanh(X[i] @ weights[0]) @ weights[1], Y[i]).backward()
result = {"weights": weights, "norms": torch.tensor(norms)}
"""
BY_LAYERS = """
model = make_model(); layers = [m for m in model.modules() if list(m.parameters(recurse=False))]
optimizers = [torch.optim.AdamW(layer.parameters(), lr=1e-2) for layer in layers]; calls = []
def hook_of(layer, optimizer):
    def update(p):
        calls.append(p.numel())
        if all(q.grad is not None for q in layer.parameters()):
            optimizer.step(); optimizer.zero_grad()
    return update
for layer, optimizer in zip(layers, optimizers):
    for p in layer.parameters(): p.register_post_accumulate_grad_hook(hook_of(layer, optimizer))
for step in range(24):
    for part in range(2):
        i = torch.randint(0, 96, (8,)); F.mse_loss(model(X[i]), Y[i]).backward()
result = {**model.state_dict(), "calls": torch.tensor(calls)}
"""
STYLES = {"in turn": IN_TURN, "without a module": WITHOUT_A_MODULE, "by layers": BY_LAYERS}


@pytest.mark.parametrize("style", STYLES)
def test_two_kills_leave_the_weights_of_plain_python(style: str, tmp_path: Path) -> None:
    text = f"{PRELUDE}{STYLES[style]}torch.save(result, sys.argv[-1])\n"

    expected = train_plainly(tmp_path / "plain", text)
    ended = supervised(
        tmp_path / "killed",
        text,
        settings=("checkpoint.every_steps=5", "checkpoint.background=false"),
        faults="[{kind: sigkill, step: 8, moment: backward}, {kind: sigkill, step: 17}]",
    )

    assert (expected.returncode, ended.returncode) == (0, 0), expected.stderr + ended.stderr
    assert [e["exactness"] for e in ended.events("resumed")] == ["exact", "exact"]
    assert differences(expected.result(), ended.result()) == []
