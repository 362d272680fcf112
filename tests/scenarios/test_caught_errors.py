"""Errors that the script catches and goes on from: supervision goes on, too."""

from __future__ import annotations

from pathlib import Path

from supervisor.storage.steps.flight_reader import read_steps
from tests.scenarios.loop_styles import PRELUDE
from tests.scenarios.runs import supervised

CATCHING = (
    PRELUDE
    + """
class Fragile(torch.optim.SGD):
    def step(self, closure=None):
        if step == 10: raise RuntimeError("a failed update")
        return super().step(closure)

class Refuses(torch.autograd.Function):
    @staticmethod
    def forward(context, x): return x.clone()
    @staticmethod
    def backward(context, gradient): raise RuntimeError("a failed backward")

model = make_model()
torch.optim.SGD(model.parameters(), lr=1.0)  # torch wraps its class: `super().step` has hooks, too
optimizer = Fragile(model.parameters(), lr=0.01, momentum=0.9)
caught = []
for step in range(40):
    try:
        x = X[:, :7] if step == 15 else X
        loss = F.mse_loss(model(x), Y)
        if step == 20: loss = Refuses.apply(loss)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    except RuntimeError as error:
        caught.append(str(error)[:8])
result = {"caught": caught, "weight": model[0].weight}
torch.save(result, sys.argv[-1])
"""
)


def test_after_a_caught_error_the_next_poisoned_update_is_still_left_out(tmp_path: Path) -> None:
    ended = supervised(
        tmp_path,
        CATCHING,
        faults="[{kind: nan_gradient, step: 30}]",
    )

    steps = read_steps(ended.run_dir)
    assert ended.returncode == 0, ended.stderr
    assert ended.result()["caught"] == ["a failed", "mat1 and", "a failed"]
    assert ended.result()["weight"].isfinite().all()
    assert list(steps["step"]) == list(range(38))  # a failed update counts, no update does not
    assert "skip_update" in ended.actions()
