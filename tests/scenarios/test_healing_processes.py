"""What `checkpoint` and `restart` heal, each alone; and what an earlier run's healing is worth."""

from __future__ import annotations

from pathlib import Path

from supervisor.settings import CheckpointSettings
from supervisor.storage.cases.case_advisor import Case
from supervisor.storage.cases.cases import CaseLibrary
from supervisor.storage.checkpoints.checkpoints import CheckpointRing
from tests.scenarios.loop_styles import PRELUDE
from tests.scenarios.runs import supervised

SCRIPT = (
    PRELUDE
    + """
model = make_model(dropout=0.0); optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for step in range(160):
    rows = torch.randint(96, (32,))
    loss = F.mse_loss(model(X[rows]), Y[rows])
    optimizer.zero_grad(); loss.backward(); optimizer.step()
with torch.no_grad():
    torch.save(F.mse_loss(model(X), Y), sys.argv[-1])
"""
)
UNGUARDED = ("policy.guard.skip_nonfinite=false", "policy.guard.skip_spike=false")


def test_a_restart_alone_heals_corrupt_weights(tmp_path: Path) -> None:
    ended = supervised(
        tmp_path,
        SCRIPT,
        settings=(
            *UNGUARDED,
            "policy.rungs=[{at: 0.5, actions: [restart]}]",
            "checkpoint.every_steps=20",
            "checkpoint.stable_after_steps=20",
            "checkpoint.background=false",
        ),
        faults="[{kind: weight, step: 90}]",
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.actions() == ["restart"]
    assert [e["step"] for e in ended.events("resumed")] == [60]  # nothing newer was stable
    asked, known = (e for e in ended.events("action") if e["name"] == "restart")
    assert (asked["cause"], asked["rung"]) == (known["cause"], known["rung"])
    assert (known["outcome"], known["applied_at"]) == ("helped", asked["step"])
    assert known["cost_s"] > asked["cost_s"]  # a process start, and the steps since 60
    assert float(ended.result()) < 0.6
    ring = CheckpointRing(ended.run_dir / "checkpoints", CheckpointSettings())
    (left,) = ring.abandoned()  # what the restart left behind stays, though not its replay log
    assert (left.step, left.meta["tape_offset"]) == (asked["fields"]["kept_step"], -1)


def test_a_checkpoint_at_the_first_sign_of_trouble_saves_what_a_kill_would_take(
    tmp_path: Path,
) -> None:
    ended = supervised(
        tmp_path,
        SCRIPT,
        settings=(
            *UNGUARDED,
            "policy.rungs=[{at: 0.3, actions: [checkpoint]}]",
            "checkpoint.every_steps=100000",
            "checkpoint.background=false",
        ),
        faults="[{kind: gradient_spike, step: 90, factor: 30}, {kind: sigkill, step: 93}]",
    )

    assert ended.returncode == 0, ended.stderr
    assert set(ended.actions()) == {"checkpoint"}
    assert [e["step"] for e in ended.events("resumed")] == [91]


def test_what_helped_in_an_earlier_run_is_tried_first_and_the_journal_says_so(
    tmp_path: Path,
) -> None:
    signature = {
        "cause": "divergence",
        "shape": "sudden",
        "precision": "unscaled",
        "phase": "start",
    }
    library = CaseLibrary(tmp_path / ".cases.sqlite")
    library.add(
        Case(cause="divergence", signature=signature, treatment="rollback", outcome="helped")
    )

    ended = supervised(
        tmp_path,
        SCRIPT,
        settings=(*UNGUARDED, "snapshot.every_steps=10"),
        faults="[{kind: lr_spike, step: 90, factor: 120}]",
    )

    first = next(e for e in ended.events("action") if e["name"] != "checkpoint")
    assert ended.returncode == 0, ended.stderr
    assert (first["name"], first["source"]) == ("rollback", "case library")
    assert "helped in similar cases" in first["reason"]
    assert (ended.run_dir / "cases.json").stat().st_mode & 0o777 == 0o600
