"""Treatment where the optimizer gets a closure: judged behind its backward, before the update."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest
import torch

from tests.scenarios.loop_styles import PRELUDE
from tests.scenarios.runs import supervised, train_plainly
from tests.scenarios.test_numerical_faults import CHAR_LM, FAULTS, STEPS, _final_loss

LOOP = """            loss = loss_of(model, inputs, targets)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
"""
CLOSURE = """            def closure():
                loss = loss_of(model, inputs, targets)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                return loss
            loss = optimizer.step(closure)
"""

TRAINING = (
    PRELUDE
    + """
model = make_model(0.0)
OPTIMIZER
Y = Y + 0.3 * torch.randn_like(Y)  # a loss that stays away from zero
for step in range(60):
    rows = torch.randint(0, len(X), (16,))
    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(X[rows]), Y[rows])
        if step == POISONED: loss = loss * float("nan")
        loss.backward()
        return loss
    before = [p.detach().clone() for p in model.parameters()]
    loss = optimizer.step(closure)
    assert loss is not None
    same = all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
    if step in (44, 45, 46): print(step, "unchanged" if same else "moved")
torch.save(model.state_dict(), sys.argv[-1])
"""
)
SAM = """
class Sam(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 1e-2})
        self.base = torch.optim.SGD(self.param_groups, 1e-2)
    @torch.no_grad()
    def step(self, closure):
        closure = torch.enable_grad()(closure)
        loss = closure()
        there = [p for g in self.param_groups for p in g["params"]]
        norm = torch.stack([p.grad.norm() for p in there if p.grad is not None]).norm()
        old = [p.clone() for p in there]
        for p in there: p.add_(p.grad, alpha=float(0.05 / (norm + 1e-12)))
        closure()
        for p, o in zip(there, old): p.copy_(o)
        self.base.step()
        return loss
optimizer = Sam(model.parameters())
"""
USUAL = ("loss_spike", "nan_loss")
OPTIMIZERS = {
    "Adam": "optimizer = torch.optim.Adam(model.parameters(), 1e-2)",
    "SGD": "optimizer = torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9)",
    "NAdam": "optimizer = torch.optim.NAdam(model.parameters(), 1e-2)",
    "SAM": SAM,
}


def _script(name: str, *, poisoned: int = -1) -> str:
    text = TRAINING.replace("OPTIMIZER\n", OPTIMIZERS[name].strip() + "\n")
    return text.replace("POISONED", str(poisoned))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_poisoned_update_is_left_out_before_it_is_made(name: str, tmp_path: Path) -> None:
    ended = supervised(tmp_path, _script(name, poisoned=45))

    assert ended.returncode == 0, ended.stderr
    assert [e["step"] for e in ended.events("update_skipped")] == [45]
    assert not ended.events("rollback")
    assert "44 moved\n45 unchanged\n46 moved" in ended.stdout
    assert all(bool(value.isfinite().all()) for value in ended.result().values())


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[] if n in ("Adam", "SAM") else pytest.mark.exhaustive)
        for n in OPTIMIZERS
    ],
)
def test_a_healthy_training_and_a_killed_one_end_as_without_us(name: str, tmp_path: Path) -> None:
    for folder in ("plain", "killed"):
        (tmp_path / folder).mkdir()
    expected = train_plainly(tmp_path / "plain", _script(name)).result()

    killed = supervised(
        tmp_path / "killed",
        _script(name),
        settings=["checkpoint.every_steps=10", "checkpoint.background=false"],
        faults="[{kind: sigkill, step: 37}]",
    )

    assert killed.returncode == 0, killed.stderr
    assert killed.actions() == []
    assert killed.events("resumed")
    assert all(torch.equal(killed.result()[key], expected[key]) for key in expected)


def test_an_exact_resume_across_an_update_that_was_left_out(tmp_path: Path) -> None:
    for folder in ("whole", "killed"):
        (tmp_path / folder).mkdir()
    text = _script("Adam", poisoned=25)
    whole = supervised(tmp_path / "whole", text)

    killed = supervised(
        tmp_path / "killed",
        text,
        settings=["checkpoint.every_steps=10", "checkpoint.background=false"],
        faults="[{kind: sigkill, step: 47}]",
    )

    assert killed.returncode == 0, killed.stderr
    assert killed.events("resumed")
    assert all(torch.equal(killed.result()[key], value) for key, value in whole.result().items())


@lru_cache(maxsize=1)
def _undisturbed(folder: str) -> float:
    return _final_loss(train_plainly(Path(folder), _char_lm(), STEPS))


def _char_lm() -> str:
    text = CHAR_LM.read_text()
    assert LOOP in text
    return text.replace(LOOP, CLOSURE)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> float:
    return _undisturbed(str(tmp_path_factory.mktemp("plain")))


@pytest.mark.parametrize(
    "fault",
    [pytest.param(f, marks=[] if f == "loss_spike" else pytest.mark.exhaustive) for f in FAULTS],
)
def test_a_run_with_a_fault_under_a_closure_ends_within_two_percent(
    fault: str, undisturbed: float, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if fault not in USUAL and not request.config.getoption("--all-faults"):
        pytest.skip("with --all-faults")
    ended = supervised(
        tmp_path,
        _char_lm(),
        STEPS,
        settings=("checkpoint.every_steps=50", "snapshot.every_steps=10"),
        faults=f"[{FAULTS[fault]}]",
    )

    assert ended.returncode == 0, ended.stderr
    assert _final_loss(ended) <= 1.02 * undisturbed
    assert {"skip_update", "rollback"} & set(ended.actions())


LIGHTNING = """
import sys, torch, lightning as L
L.seed_everything(3); torch.set_num_threads(1)
class Net(L.LightningModule):
    def __init__(self):
        super().__init__(); self.net = torch.nn.Linear(8, 1)
    def training_step(self, batch, index):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.net(x), y)
        return loss * float("nan") if self.global_step == POISONED else loss
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-2)
g = torch.Generator().manual_seed(0)
X = torch.randn(320, 8, generator=g); Y = X.sum(1, keepdim=True) + torch.randn(320, 1, generator=g)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), 16, shuffle=True)
trainer = L.Trainer(max_epochs=4, accelerator="cpu", devices=1, gradient_clip_val=5.0,
                    logger=False, enable_checkpointing=False, enable_progress_bar=False)
net = Net(); trainer.fit(net, data)
torch.save(net.state_dict(), sys.argv[-1])
"""


@pytest.mark.exhaustive
def test_automatic_optimization_of_lightning_is_treated_before_its_update(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    for folder in ("plain", "healthy", "poisoned"):
        (tmp_path / folder).mkdir()
    text = LIGHTNING.replace("POISONED", "-1")
    expected = train_plainly(tmp_path / "plain", text).result()

    healthy = supervised(tmp_path / "healthy", text)
    poisoned = supervised(tmp_path / "poisoned", LIGHTNING.replace("POISONED", "45"))

    assert all(torch.equal(healthy.result()[key], expected[key]) for key in expected)
    assert healthy.actions() == []
    assert [e["step"] for e in poisoned.events("update_skipped")] == [45]
    assert not poisoned.events("rollback")
    assert all(bool(value.isfinite().all()) for value in poisoned.result().values())
