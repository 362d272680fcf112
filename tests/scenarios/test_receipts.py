"""Every treatment has its receipt in the journal; a resume goes on under those in force."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_reader import read_steps
from tests.scenarios.loop_styles import PRELUDE
from tests.scenarios.runs import Ended, supervised

SETTINGS = ("checkpoint.every_steps=10", "checkpoint.background=false", "snapshot.every_steps=10")

UNLUCKY = (
    PRELUDE
    + """
model = nn.Linear(8, 1); optimizer = torch.optim.SGD(model.parameters(), lr=3.0)
for step in range(200):
    if step == 90: optimizer.param_groups[0]["lr"] *= 20
    rows = torch.randint(96, (32,))
    loss = F.mse_loss(model(X[rows]), Y[rows])
    optimizer.zero_grad(); loss.backward(); optimizer.step()
torch.save(model.state_dict(), sys.argv[-1])
"""
)

OPEN = (
    PRELUDE
    + """
import supervisor
model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
loader = DataLoader(TensorDataset(X, Y), batch_size=32, shuffle=True)
batches = supervisor.batches(loader)
for step in range(150):
    x, y = next(batches)
    size = supervisor.batch_size(len(x))
    optimizer.zero_grad()
    for part_x, part_y in zip(x.split(size), y.split(size)):
        with torch.autocast("cpu", torch.bfloat16):
            output = model(part_x)
        (F.mse_loss(output.float(), part_y) * len(part_x) / len(x)).backward()
    optimizer.step()
torch.save(torch.tensor(step), sys.argv[-1])
"""
)
TOGETHER = (
    "checkpoint", "cut_lr", "tighten_clip", "adaptive_clip", "smaller_batch", "skip_data",
    "reset_optimizer", "fp32_modules", "fp32_fallback",
    "checkpoint_activations", "rollback",
)  # fmt: skip
NO_VERDICT = {"checkpoint", "stop"}
"""A checkpoint's outcome is whether it becomes stable; a stop's is the end of the run."""


def receipts(ended: Ended) -> list[dict[str, Any]]:
    """The treatments of a run; each has been checked for cause, cost and later outcome."""
    lines = ended.events("action")
    verdicts = {
        (e["name"], e["applied_at"]): e for e in lines if e["outcome"] in ("helped", "failed")
    }
    acted = [e for e in lines if e.get("phase") != "verified"]
    for event in acted:
        assert event["cause"], event
        assert event["rung"] is not None, event
        assert event["cost_s"] >= 0.0, event
        assert event["outcome"] in ("applied", "refused"), event
        assert event["reason"], event
        assert event["detail"], event
        if event["outcome"] == "applied" and event["name"] not in NO_VERDICT:
            verdict = verdicts[event["name"], event["step"]]
            assert (verdict["cause"], verdict["rung"]) == (event["cause"], event["rung"])
    return acted


def test_a_resume_goes_on_exactly_under_a_share_and_a_limit_of_the_rate(tmp_path: Path) -> None:
    ended = supervised(tmp_path, UNLUCKY, settings=SETTINGS, faults="[{kind: sigkill, step: 158}]")

    assert ended.returncode == 0, ended.stderr
    applied = [e["name"] for e in receipts(ended) if e["outcome"] == "applied"]
    assert {"back_to_start", "rollback", "limit_lr"} <= set(applied)
    assert [e["name"] for e in ended.events("rollback")] == ["back_to_start", "rollback"]
    assert [(e["from_step"], e["exactness"]) for e in ended.events("resumed")] == [(150, "exact")]
    # What the killed attempt computed behind the checkpoint comes out again, to the bit.
    rows = read_steps(RunDirectory(ended.run_dir), all_attempts=True)
    before, again = (rows[(rows["attempt"] == n) & (rows["step"] >= 150)] for n in (1, 2))
    assert before["loss"].tolist() == again["loss"][: len(before)].tolist()
    assert len(before) == 9


def test_each_action_of_a_policy_leaves_a_receipt(tmp_path: Path) -> None:
    ended = supervised(
        tmp_path,
        OPEN,
        settings=(
            *SETTINGS,
            "policy.guard.skip_spike=false",
            f"policy.rungs=[{{at: 0.3, actions: [{', '.join(TOGETHER)}]}}]",
            "policy.by_cause={}",
        ),
        faults="[{kind: lr_spike, step: 60, factor: 10000}]",
    )

    assert ended.returncode == 0, ended.stderr
    acted = receipts(ended)
    refused = {e["name"] for e in acted if e["outcome"] == "refused"}
    assert {e["name"] for e in acted} >= set(TOGETHER)
    assert refused <= {"checkpoint_activations", "fp32_modules"}, refused
