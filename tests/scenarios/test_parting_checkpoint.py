"""A process that fails or is ended saves the state of its last boundary, and loses nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.loop_styles import PRELUDE
from tests.scenarios.runs import Ended, again, differences, plain, supervised

AT = 13
TRAINING = (
    PRELUDE
    + """
import os, time
place = sys.argv[1]

def strikes(here):
    # In the first process alone: a hidden file belongs to nobody, so a resume leaves it.
    if here != place or step != 13 or os.path.exists(".struck"): return False
    open(".struck", "w").close()
    return True

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.drop, self.b = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 1)
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        y = self.drop(self.norm(self.a(x)).relu())
        if strikes("forward"): raise RuntimeError("a kernel failed")
        if strikes("memory"): raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return self.b(y)

class Breaking(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        if strikes("update"):
            for group in self.param_groups:
                group["params"][0].mul_(0.5)
            raise RuntimeError("half an update")
        return super().step(closure)

torch.manual_seed(3)
model = Net(); optimizer = Breaking(model.parameters(), lr=0.05, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.8)
average = [p.detach().clone() for p in model.parameters()]
history, best, log = [], 9.0, open("log.txt", "w")
for step in range(30):
    rows = torch.randperm(96)[:16]
    loss = F.mse_loss(model(X[rows]), Y[rows])
    if strikes("nan"):
        loss = loss * float("nan")
    optimizer.zero_grad(); loss.backward()
    if strikes("asleep"): time.sleep(600)
    if loss.isnan(): raise ValueError("the loss is nan")
    optimizer.step()
    history.append(loss.item() + random.random())
    if strikes("line"): raise KeyError("a mistake of the script's")
    schedule.step()
    for mean, p in zip(average, model.parameters()): mean.mul_(0.9).add_(p.detach(), alpha=0.1)
    print(step, history[-1], file=log)
    with open("table.csv", "a") as table: print(step, history[-1], sep=",", file=table)
    if history[-1] < best:
        best = history[-1]
        torch.save(model.state_dict(), "best.pt")
    if strikes("file"):
        torch.save({}, "best.pt")
        raise OSError("the disk is gone")
log.close()
torch.save({"model": model.state_dict(), "average": average, "history": history, "calls": model.calls,
            "schedule": schedule.last_epoch}, sys.argv[-1])
"""
)
EVERY_BOUNDARY = ("checkpoint.every_steps=1000", "parting.every_steps=1")
FILES = ("log.txt", "table.csv")


def outcome(ended: Ended) -> dict[str, object]:
    texts = {name: (ended.folder / name).read_text() for name in FILES}
    return {**texts, "best": ended.result("best.pt"), "end": ended.result()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    return outcome(plain(tmp_path_factory.mktemp("plain"), TRAINING, ["nowhere", "out.pt"]))


@pytest.mark.parametrize(
    ("place", "cause"),
    [
        ("forward", "exception"),
        ("memory", "out_of_memory"),
        ("update", "exception"),
        ("line", "exception"),
        ("file", "exception"),
    ],
)
def test_a_failing_process_goes_on_from_its_last_boundary_to_the_same_end(
    place: str, cause: str, tmp_path: Path, undisturbed: dict[str, object]
) -> None:
    ended = supervised(tmp_path, TRAINING, [place, "out.pt"], settings=EVERY_BOUNDARY)

    assert ended.returncode == 0, ended.stderr
    assert [e["cause"] for e in ended.events("worker_exited")] == [cause, "completed"]
    saved = [(e["step"], e["reason"]) for e in ended.events("checkpoint_saved")]
    assert saved == [(AT, "parting")]
    assert ended.events("checkpoint_stable") == []
    resumed = ended.events("resumed")[0]
    assert (resumed["from_step"], resumed["exactness"]) == (AT, "exact"), resumed["reason"]
    assert differences(undisturbed, outcome(ended)) == []


def test_a_process_that_finds_no_boundary_after_sigterm_leaves_with_the_last_one(
    tmp_path: Path, undisturbed: dict[str, object]
) -> None:
    stopped = supervised(
        tmp_path,
        TRAINING,
        ["asleep", "out.pt"],
        settings=EVERY_BOUNDARY,
        faults="[{kind: sigterm_parent, step: 13, moment: forward}]",
    )
    resumed = again(stopped, "resume", "run", "--set", "faults=[]")

    assert stopped.returncode == 75, stopped.stderr
    assert [e["step"] for e in stopped.events("checkpoint_saved")] == [AT]
    assert resumed.returncode == 0, resumed.stderr
    assert [(e["from_step"], e["exactness"]) for e in resumed.events("resumed")] == [(AT, "exact")]
    assert differences(undisturbed, outcome(resumed)) == []


def test_a_hang_that_sigterm_ends_loses_nothing(
    tmp_path: Path, undisturbed: dict[str, object]
) -> None:
    hang = ("watchdog.hang_timeout_s=3", "watchdog.stack_interval_s=0.3")

    ended = supervised(tmp_path, TRAINING, ["asleep", "out.pt"], settings=(*EVERY_BOUNDARY, *hang))

    assert ended.returncode == 0, ended.stderr
    assert [e["cause"] for e in ended.events("worker_exited")] == ["hang", "completed"]
    assert [(e["from_step"], e["exactness"]) for e in ended.events("resumed")] == [(AT, "exact")]
    assert differences(undisturbed, outcome(ended)) == []


def test_a_state_before_a_loss_that_is_not_finite_is_not_saved_as_healthy(tmp_path: Path) -> None:
    ended = supervised(tmp_path, TRAINING, ["nan", "out.pt"], settings=EVERY_BOUNDARY)

    assert ended.events("worker_exited")[0]["cause"] == "nonfinite"
    assert [e for e in ended.events("checkpoint_saved") if e["attempt"] == 1] == []
    told = [e["message"] for e in ended.events("warning")]
    assert f"the state of step {AT} is not saved at the end: the loss was not finite" in told
