"""What a rollback threw away is on disk, and a person can go back to it."""

from __future__ import annotations

import json
from pathlib import Path

from supervisor.settings import CheckpointSettings
from supervisor.storage.checkpoints.checkpoints import CheckpointRing
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_reader import read_steps
from tests.scenarios.loop_styles import PRELUDE
from tests.scenarios.runs import again, supervised

SCRIPT = (
    PRELUDE
    + """
model = make_model(dropout=0.1); optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.95)
for step in range(110):
    rows = torch.randint(96, (32,))
    loss = F.mse_loss(model(X[rows]), Y[rows])
    optimizer.zero_grad(); loss.backward(); optimizer.step(); scheduler.step()
torch.save(model.state_dict(), sys.argv[-1])
"""
)


def test_a_person_can_go_back_to_what_a_rollback_threw_away(tmp_path: Path) -> None:
    ended = supervised(
        tmp_path,
        SCRIPT,
        settings=("checkpoint.every_steps=20", "checkpoint.background=false"),
        faults="[{kind: lr_spike, step: 60, factor: 300}, {kind: sigterm_parent, step: 90}]",
    )

    assert ended.returncode == 75, ended.stderr
    kept, *more = [e for e in ended.events("checkpoint_saved") if e.get("abandoned")]
    step = kept["step"]
    (rollback,) = ended.events("rollback")
    assert (more, rollback["before_step"]) == ([], step)
    (receipt,) = (e for e in ended.events("action") if e["name"] == "rollback")
    assert receipt["fields"]["kept_step"] == step
    ring = CheckpointRing(ended.run_dir / "checkpoints", CheckpointSettings())
    assert [c.step for c in ring.abandoned()] == [step]
    newest = ring.newest_verified()
    assert newest is not None
    assert newest.step == 91

    assert kept["command"] == f"supervisor resume {ended.run_dir} --from {step}"
    resumed = again(ended, *kept["command"].split()[1:])

    assert resumed.returncode == 0, resumed.stderr
    found = [(e["from_step"], e["exactness"]) for e in resumed.events("resumed")]
    assert found == [(step, "exact")]
    assert not [e for e in resumed.events("warning") if e.get("found") == "another loss"]
    rows = read_steps(RunDirectory(ended.run_dir), all_attempts=True)
    healed, thrown = (
        float(rows[(rows["attempt"] == n) & (rows["step"] == step)]["loss"][0]) for n in (1, 2)
    )
    assert thrown > 5 > healed


REFUSED = """
import os, supervisor
class Average:
    def state_dict(self): return {"x": 1.0}
    def load_state_dict(self, state):
        if state["x"] and not os.path.exists("torn"):
            os.close(os.open("torn", os.O_CREAT)); raise RuntimeError("no memory left")
average = Average(); supervisor.track(average=average)
"""


def test_a_rollback_that_the_script_refuses_changes_nothing(tmp_path: Path) -> None:
    ended = supervised(
        tmp_path,
        PRELUDE + REFUSED + SCRIPT.removeprefix(PRELUDE),
        settings=("checkpoint.every_steps=20", "checkpoint.background=false"),
        faults="[{kind: lr_spike, step: 60, factor: 300}]",
    )

    assert ended.returncode == 0, ended.stderr
    (refused,) = (e for e in ended.events("action") if "no memory left" in e.get("detail", ""))
    assert (refused["name"], refused["outcome"], refused["attempt"]) == ("rollback", "refused", 1)
    assert "nothing was changed" in refused["detail"]
    assert ended.actions()


TORN = """
import os
class Once(dict):
    def __setitem__(self, key, value):
        if key == "exp_avg" and not os.path.exists("torn"):
            os.close(os.open("torn", os.O_CREAT)); raise MemoryError("no memory left")
        super().__setitem__(key, value)
"""
PLANTED = """
    if step == 40: optimizer.state = type(optimizer.state)(
        dict, {p: Once(entries) for p, entries in optimizer.state.items()})
    rows ="""


def test_a_rollback_that_fails_half_way_is_followed_by_a_restart(tmp_path: Path) -> None:
    text = PRELUDE + TORN + SCRIPT.removeprefix(PRELUDE).replace("\n    rows =", PLANTED, 1)

    ended = supervised(
        tmp_path,
        text,
        settings=("checkpoint.every_steps=20", "checkpoint.background=false"),
        faults="[{kind: lr_spike, step: 60, factor: 300}]",
    )

    assert ended.returncode == 0, ended.stderr
    (torn,) = (e for e in ended.events("action") if "half-way" in e["detail"])
    assert (torn["name"], torn["outcome"], torn["attempt"]) == ("rollback", "refused", 1)
    assert "MemoryError: no memory left" in torn["detail"]
    later = [e["step"] for e in ended.events("checkpoint_saved") if e["attempt"] == 1]
    assert max(later) <= torn["step"] + 1
    assert not [e for e in ended.events("rollback") if e["attempt"] == 1]
    second = ended.events("attempt_started")[1]
    assert second["checkpoint_step"] <= 60


GENERATOR = """
import os
import numpy as np
set_state = np.random.set_state
def once(state):
    if os.path.exists("killed") and not os.path.exists("torn"):
        os.close(os.open("torn", os.O_CREAT)); raise MemoryError("no memory left")
    set_state(state)
np.random.set_state = once
"""


def test_a_resume_that_fails_at_the_last_generator_trains_no_step(tmp_path: Path) -> None:
    killed = "    if step == 31: os.close(os.open('killed', os.O_CREAT))\n    rows ="
    text = PRELUDE + GENERATOR + SCRIPT.removeprefix(PRELUDE).replace("    rows =", killed, 1)

    ended = supervised(
        tmp_path,
        text,
        settings=(
            "checkpoint.every_steps=20",
            "checkpoint.background=false",
            "restart.progress_steps=2",
        ),
        faults="[{kind: sigkill, step: 33}]",
    )

    assert ended.returncode == 0, ended.stderr
    assert "MemoryError: no memory left" in json.dumps(ended.events())
    rows = read_steps(RunDirectory(ended.run_dir), all_attempts=True)
    assert sorted(set(rows["attempt"].tolist())) == [1, 3]
    assert [e["exactness"] for e in ended.events("resumed")] == ["approximate"]
