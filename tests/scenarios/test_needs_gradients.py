"""An optimizer of the script's own that takes every gradient for granted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.loop_styles import ENDING, PRELUDE
from tests.scenarios.runs import differences, supervised, train_plainly

SCRIPT = """
class Momentum(torch.optim.Optimizer):
    def __init__(self, params, lr): super().__init__(params, {"lr": lr}); self.norms = []
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                mean = self.state[p].setdefault("mean", torch.zeros_like(p)).lerp_(p.grad, 0.1)
                p.sub_(mean / (mean.norm() + 1e-6), alpha=group["lr"])
                self.norms.append(float(mean.norm()))
        return mean.norm()
norms = []; model = make_model(); first, *rest = model.parameters(); sick = len(sys.argv) > 2
optimizers = [torch.optim.Adam([first], lr=1e-2), Momentum(rest, lr=1e-2)]
for step in range(24):
    i = torch.randint(0, 96, (8,))
    loss = F.mse_loss(model(X[i]), Y[i]) * (float("nan") if sick and step == 9 else 1.0)
    model.zero_grad(); loss.backward()
    optimizers[0].step(); norm = optimizers[1].step()
    if not sick: norms.append(norm.item())
result = {**model.state_dict(), "norms": torch.tensor([*optimizers[1].norms, *norms])}
"""


def test_it_resumes_exactly(tmp_path: Path) -> None:
    text = PRELUDE + SCRIPT + ENDING.replace("-1", "1")

    expected = train_plainly(tmp_path / "plain", text)
    ended = supervised(
        tmp_path / "killed",
        text,
        settings=("checkpoint.every_steps=5", "checkpoint.background=false"),
        faults="[{kind: sigkill, step: 17}]",
    )

    assert (expected.returncode, ended.returncode) == (0, 0), expected.stderr + ended.stderr
    assert [e["exactness"] for e in ended.events("resumed")] == ["exact"]
    assert differences(expected.result(), ended.result()) == []


def test_an_update_that_is_left_out_does_not_end_the_script(tmp_path: Path) -> None:
    text = PRELUDE + SCRIPT + ENDING.replace("-1", "1")

    ended = supervised(tmp_path, text, ("out.pt", "sick"))

    assert ended.returncode == 0, ended.stderr
    assert len(ended.events("attempt_started")) == 1
    assert ended.events("update_skipped")
    assert all(value.isfinite().all() for value in ended.result().values())


WITHOUT_MODULE = """
import sys, torch
torch.manual_seed(0)
class Signs(torch.optim.Optimizer):
    def __init__(self, params): super().__init__(params, {"lr": 0.01})
    @torch.no_grad()
    def step(self):
        (w,) = self.param_groups[0]["params"]
        mean = self.state[w].setdefault("mean", torch.zeros_like(w)).lerp_(w.grad, 0.1)
        w.sub_(mean.sign(), alpha=0.01)
        return RETURNED
w = torch.nn.Parameter(torch.randn(8, 4)); optimizer = Signs([w]); found = []
for step in range(24):
    loss = (torch.randn(16, 8) @ w).pow(2).mean()
    optimizer.zero_grad(); loss.backward()
    norm = optimizer.step()
    found.append(norm[0].item() + loss.item())
torch.save({"w": w.detach(), "found": torch.tensor(found)}, sys.argv[1])
"""


@pytest.mark.parametrize(
    ("returned", "exactness"), [("mean.norm()[None]", "exact"), ("[mean.norm()]", "approximate")]
)
def test_what_an_update_returns_at_its_checkpoint_is_saved_or_the_resume_is_not_exact(
    returned: str, exactness: str, tmp_path: Path
) -> None:
    text = WITHOUT_MODULE.replace("RETURNED", returned)

    expected = train_plainly(tmp_path / "plain", text)
    ended = supervised(
        tmp_path / "killed",
        text,
        settings=("checkpoint.every_steps=5", "checkpoint.background=false"),
        faults="[{kind: sigkill, step: 17}]",
    )

    assert (expected.returncode, ended.returncode) == (0, 0), expected.stderr + ended.stderr
    assert [e["exactness"] for e in ended.events("resumed")] == [exactness]
    is_same = differences(expected.result(), ended.result()) == []
    assert is_same is (exactness == "exact")
