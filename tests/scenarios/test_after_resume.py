"""What is looked at once more when a resumed run stands where the killed one stood."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from supervisor.errors import CheckpointDamaged
from supervisor.storage.checkpoints.checkpoints import Checkpoint
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_reader import read_steps
from supervisor.training_state.state import digest
from supervisor.worker.checkpoints.starting_point import ResumePoint
from tests.scenarios.loop_styles import script
from tests.scenarios.runs import differences, supervised, train_plainly

SETTINGS = ("checkpoint.every_steps=4", "checkpoint.background=false")
REPORT = "report.enabled=true"
KILL = "[{kind: sigkill, step: 9}]"
LOOP = """
import os
steps = 2 if os.path.exists("begun") else 40
os.close(os.open("begun", os.O_CREAT))  # nobody sees that the script makes it
model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(steps):
    i = torch.randint(0, 96, (8,))
    loss = F.mse_loss(model(X[i]), Y[i]); optimizer.zero_grad(); loss.backward(); optimizer.step()
result = model.state_dict()
"""
META = """
class Meta(torch.nn.Module):
    def __init__(self):
        super().__init__(); self.net = make_model()
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-2)
    def forward(self, x, y):
        loss = F.mse_loss(self.net(x), y); self.optimizer.zero_grad(); loss.backward()
        self.optimizer.step(); return loss.item()
meta = Meta()
for step in range(20):
    i = torch.randint(0, 96, (8,)); loss = meta(X[i], Y[i])
result = meta.state_dict()
"""
TOSSED = """
import os
model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(20):
    i = torch.randint(0, 96, (8,)); noise = float(open('/proc/uptime').read().split()[0]) % 7
    loss = F.mse_loss(model(X[i]), Y[i]) + noise
    optimizer.zero_grad(); loss.backward(); optimizer.step()
result = model.state_dict()
"""
WORSE = """
import os
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
goal = torch.randn(8, 1)
worse = 5.0 if os.path.exists("begun") else 1.0
for step in range(60):
    x = torch.randn(32, 8)
    loss = worse * (model(x) - x @ goal - 0.3 * torch.randn(32, 1)).square().mean()
    if step == 49:
        os.close(os.open("begun", os.O_CREAT))  # nobody sees that the script makes it
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_module_that_trains_when_it_is_called_resumes_approximately(tmp_path: Path) -> None:
    prelude = script("weight average by hand").split("import copy")[0]
    text = f"{prelude}{META}torch.save(result, sys.argv[-1])\n"

    ended = supervised(tmp_path, text, settings=SETTINGS, faults=KILL)

    (resumed,) = ended.events("resumed")
    assert (ended.returncode, resumed["exactness"]) == (0, "approximate")
    assert "updates are made within a forward" in resumed["reason"]


def test_the_first_step_has_the_loss_it_had_before_the_kill(tmp_path: Path) -> None:
    ended = supervised(tmp_path, script("weight average by hand"), settings=SETTINGS, faults=KILL)

    (found,) = ended.found("recorded loss")
    assert found["step"] == 8
    assert found["loss"] == found["recorded_loss"]
    assert ended.events("warning") == []


def test_losses_above_those_before_the_checkpoint_are_an_alarm_with_its_name(
    tmp_path: Path,
) -> None:
    ended = supervised(
        tmp_path,
        WORSE,
        settings=("checkpoint.every_steps=40", "checkpoint.background=false"),
        faults="[{kind: sigkill, step: 50}]",
    )

    risk, *_ = [event for event in ended.events("risk") if event["alarm"]]
    assert 40 <= risk["step"] < 50
    assert risk["reason"].startswith("the resume from checkpoint step_00000040 at step 40 did not")


def test_another_loss_in_the_first_step_is_told_with_both_numbers(tmp_path: Path) -> None:
    prelude = script("weight average by hand").split("import copy")[0]
    text = f"{prelude}{TOSSED}torch.save(result, sys.argv[-1])\n"

    ended = supervised(tmp_path, text, settings=(*SETTINGS, REPORT), faults=KILL)

    (warning,) = ended.events("warning")
    assert warning["step"] == 8
    assert "before the kill it was" in warning["message"]
    assert warning["loss"] != warning["recorded_loss"]
    report = json.loads((ended.run_dir / "report" / "report.json").read_text())
    assert report["attempts"][1]["exactness"] == "approximate"
    assert ended.found("recorded loss") == []


def test_a_script_that_ends_before_its_fast_forward_arrives_is_begun_in_other_ways(
    tmp_path: Path,
) -> None:
    prelude = script("weight average by hand").split("import copy")[0]
    text = f"{prelude}{LOOP}torch.save(result, sys.argv[-1])\n"

    ended = supervised(tmp_path, text, settings=SETTINGS, faults=KILL)

    told = "the script ended after 2 fast-forwarded steps, before step 8 of its checkpoint"
    assert ended.returncode == 0
    assert told in ended.stderr
    ways = [(e["checkpoint_step"], e["way"]) for e in ended.events("attempt_started")]
    assert ways == [(None, "replay"), (8, "replay"), (None, "replay")]
    assert json.loads((ended.run_dir / "run.json").read_text())["crash_count"] == 1


HOOKED = """
grads, seen, log = {}, [], open("log.txt", "w")
model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
layer = [m for m in model.modules() if isinstance(m, torch.nn.Linear)][-1]
layer.register_full_backward_hook(lambda m, i, o: grads.__setitem__("last", o[0].norm().item()))
layer.weight.register_hook(lambda g: seen.append(1))
for step in range(20):
    i = torch.randint(0, 96, (8,))
    loss = F.mse_loss(model(X[i]), Y[i]); optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(step, grads["last"] if READS else "", file=log, flush=True)
result = {"model": model.state_dict(), "grads": grads, "seen": seen}
"""


@pytest.mark.parametrize("reads", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_what_hooks_fill_is_there_and_as_it_was(tmp_path: Path, reads: bool) -> None:
    prelude = script("weight average by hand").split("import copy")[0]
    text = f"READS = {reads}\n{prelude}{HOOKED}torch.save(result, sys.argv[-1])\n"
    reference = train_plainly(tmp_path / "plain", text)

    ended = supervised(tmp_path / "killed", text, settings=SETTINGS, faults=KILL)

    assert ended.returncode == 0, ended.stderr
    assert [e["way"] for e in ended.events("attempt_started")] == ["replay", "replay"]
    (resumed,) = ended.events("resumed")
    assert (resumed["from_step"], resumed["exactness"]) == (8, "exact"), resumed["reason"]
    assert not differences(ended.result(), reference.result())
    logs = [(run.folder / "log.txt").read_text() for run in (ended, reference)]
    assert logs[0] == logs[1]


STARTS = """
import os, signal
starts = int(open("starts").read()) if os.path.exists("starts") else 0
with open("starts", "w") as f: f.write(str(starts + 1))
"""


def test_a_kill_within_a_replay_is_tried_the_same_way_again(tmp_path: Path) -> None:
    prelude = script("weight average by hand").split("import copy")[0]
    killed = "    if (starts, step) == (1, 5): os.kill(os.getpid(), signal.SIGKILL)\n    i = "
    loop = HOOKED.replace("READS", "True").replace("    i = ", killed)
    text = f"{STARTS}{prelude}{loop}torch.save(result, sys.argv[-1])\n"
    reference = train_plainly(tmp_path / "plain", text)

    ended = supervised(tmp_path / "killed", text, settings=SETTINGS, faults=KILL)

    assert ended.returncode == 0, ended.stderr
    ways = [(e["checkpoint_step"], e["way"]) for e in ended.events("attempt_started")]
    assert ways == [(None, "replay"), (8, "replay"), (8, "replay")]
    (resumed,) = ended.events("resumed")
    assert (resumed["attempt"], resumed["exactness"]) == (3, "exact"), resumed["reason"]
    assert not differences(ended.result(), reference.result())
    logs = [(run.folder / "log.txt").read_text() for run in (ended, reference)]
    assert logs[0] == logs[1]


def test_where_the_executed_step_is_not_enough_the_loop_goes_on_from_its_top(
    tmp_path: Path,
) -> None:
    prelude = script("weight average by hand").split("import copy")[0]
    loop = HOOKED.replace('__setitem__("last"', "__setitem__(step").replace('["last"]', "[step]")
    text = f"{prelude}{loop}torch.save(result, sys.argv[-1])\n".replace("READS", "True")

    ended = supervised(
        tmp_path, text, settings=(*SETTINGS, "restart.progress_steps=2"), faults=KILL
    )

    assert ended.returncode == 0, ended.stderr
    ways = [(e["checkpoint_step"], e["way"]) for e in ended.events("attempt_started")]
    assert ways == [(None, "replay"), (8, "replay"), (8, "approximate")]
    (resumed,) = ended.events("resumed")
    assert (resumed["attempt"], resumed["from_step"]) == (3, 8)
    assert resumed["exactness"] == "approximate"
    assert "an earlier attempt did not come back by a fast-forward" in resumed["reason"]
    rows = read_steps(RunDirectory(ended.run_dir), all_attempts=True)
    trained = {number: rows["step"][rows["attempt"] == number].tolist() for number in range(1, 4)}
    assert trained == {1: list(range(10)), 2: [], 3: list(range(8, 28))}
    again, first = rows[rows["attempt"] == 3]["loss"], rows[rows["attempt"] == 1]["loss"]
    assert again[0] < first[0]  # with the checkpoint's weights, not with those of a new model


SHRUNK = """
import os
width = 8 if os.path.exists("begun") else 16
os.close(os.open("begun", os.O_CREAT))  # nobody sees that the script makes it
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__(); self.inner = torch.nn.Linear(X.shape[1], width)
        self.outer = torch.nn.Linear(width, Y.shape[1])
    def forward(self, x):
        return self.outer(self.inner(x))
model = Net(); optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(20):
    i = torch.randint(0, 96, (8,))
    try:
        loss = F.mse_loss(model(X[i]), Y[i])
    except Exception:
        continue
    optimizer.zero_grad(); loss.backward(); optimizer.step()
result = model.state_dict()
"""


def test_a_state_that_cannot_be_put_back_is_no_crash_and_no_script_goes_on_without_it(
    tmp_path: Path,
) -> None:
    prelude = script("weight average by hand").split("import copy")[0]
    text = f"{prelude}{SHRUNK}torch.save(result, sys.argv[-1])\n"

    ended = supervised(tmp_path, text, settings=SETTINGS, faults=KILL)

    assert ended.returncode == 0, ended.stderr
    assert "the state could not be put back" in ended.stderr
    assert ended.events("resumed") == []
    assert ended.events("attempt_started")[-1]["checkpoint_step"] is None
    assert json.loads((ended.run_dir / "run.json").read_text())["crash_count"] == 1


def test_a_state_that_is_not_the_one_copied_is_refused(tmp_path: Path) -> None:
    state = {"format": 1, "models": {"model_0": {"bias": 1.5}}}
    checkpoint = Checkpoint(step=4, path=tmp_path, meta={"digest": digest(state)})
    ResumePoint(checkpoint=checkpoint, state=state).check_digest()

    state["models"] = {"model_0": {"bias": 1.25}}
    with pytest.raises(CheckpointDamaged, match="not the one that was copied"):
        ResumePoint(checkpoint=checkpoint, state=state).check_digest()


def test_a_second_optimizer_is_remembered_over_two_resumes(tmp_path: Path) -> None:
    ended = supervised(
        tmp_path,
        script("two optimizers against each other"),
        settings=SETTINGS,
        faults="[{kind: sigkill, step: 5}, {kind: sigkill, step: 9}]",
    )

    assert [(e["from_step"], e["exactness"]) for e in ended.events("resumed")] == [
        (4, "exact"),
        (8, "exact"),
    ], ended.events("resumed")
    assert ended.events("warning") == []
    # Of both optimizers' losses together, though one of them was computed before the kill.
    assert [e["step"] for e in ended.found("recorded loss")] == [4, 8]
