"""An optimizer whose step calls another one's: one update, treated once."""

from __future__ import annotations

from pathlib import Path

from tests.scenarios.loop_styles import PRELUDE
from tests.scenarios.runs import supervised

RATE = 0.01
SCRIPT = (
    PRELUDE
    + f"""
class Around(torch.optim.Optimizer):
    def __init__(self, inner):
        self.inner = inner; self.used = []
        super().__init__(inner.param_groups, {{}})
    def step(self):
        self.used.append(self.param_groups[0]["lr"])
        self.inner.step()
model = make_model(0.0); optimizer = Around(torch.optim.SGD(model.parameters(), lr={RATE}))
seen = []
for step in range(300):
    wrong = 1.06 ** max(0, step - 150) if step < 200 else 1.0
    loss = F.mse_loss(model(X), Y * wrong); optimizer.zero_grad(); loss.backward()
    seen.append(optimizer.param_groups[0]["lr"])
    optimizer.step()
torch.save({{"seen": seen, "used": optimizer.used}}, sys.argv[-1])
"""
)


def test_a_cut_of_the_rate_reaches_the_update_once_and_the_script_never(tmp_path: Path) -> None:
    ended = supervised(
        tmp_path,
        SCRIPT,
        settings=(
            "snapshot.every_steps=10",
            "checkpoint.every_steps=50",
            "policy.guard.skip_spike=false",
            "policy.rungs=[{at: 0.3, actions: [cut_lr]}]",
            "policy.by_cause={}",
        ),
    )

    assert ended.returncode == 0, ended.stderr
    assert "cut_lr" in ended.actions()
    assert ended.events("checkpoint_saved")
    rates = ended.result()
    assert set(rates["seen"]) == {RATE}
    factors = {round(rate / RATE, 6) for rate in rates["used"]}
    assert min(factors) >= 0.125
    assert 0.5 in factors
