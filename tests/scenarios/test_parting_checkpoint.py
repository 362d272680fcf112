"""A process that fails or is ended saves the state of its last boundary, and loses nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.loop_styles import PRELUDE
from tests.scenarios.runs import Ended, again, differences, supervised, train_plainly

PLACES = {"forward": 8, "memory": 11, "update": 14, "line": 17, "file": 20, "asleep": 13}
"""Where the script fails, if its first argument says so, and in which step."""
TRAINING = (
    PRELUDE
    + f"PLACES = {PLACES}"
    + """
import os, time
places = {p: s for p, s in PLACES.items() if p in sys.argv[1].split(",")}

def strikes(place):
    # Once: a hidden file is nobody's, so a resume leaves it.
    if step != places.get(place) or os.path.exists("." + place): return False
    open("." + place, "w").close()
    return True

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1)
        self.drop = nn.Dropout(0.2)
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        y = self.drop(self.norm(self.a(x)).relu())
        if strikes("forward"): raise RuntimeError("a kernel failed")
        if strikes("memory"): raise torch.OutOfMemoryError("CUDA out of memory")
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
os.makedirs("kept", exist_ok=True)
history, best, log = [], 9.0, open("kept/log.txt", "w")
for step in range(30):
    rows = torch.randperm(96)[:16]
    loss = F.mse_loss(model(X[rows]), Y[rows])
    optimizer.zero_grad(); loss.backward()
    if strikes("asleep"): time.sleep(600)
    optimizer.step()
    history.append(loss.item() + random.random())
    if strikes("line"): raise KeyError("a mistake of the script's")
    schedule.step()
    for mean, p in zip(average, model.parameters()): mean.mul_(0.9).add_(p.detach(), alpha=0.1)
    print(step, history[-1], file=log)
    with open("kept/table.csv", "a") as table: print(step, history[-1], sep=",", file=table)
    if history[-1] < best:
        best = history[-1]
        torch.save(model.state_dict(), "kept/best.pt")
    if strikes("file"):
        torch.save({}, "kept/best.pt")
        raise OSError("the disk is gone")
log.close()
torch.save({"model": model.state_dict(), "average": average, "history": history,
            "calls": model.calls, "schedule": schedule.last_epoch}, sys.argv[-1])
"""
)
EVERY_BOUNDARY = ("checkpoint.every_steps=1000", "parting.every_steps=1")
FILES = ("kept/log.txt", "kept/table.csv")


def outcome(ended: Ended) -> dict[str, object]:
    texts = {name: (ended.folder / name).read_text() for name in FILES}
    return {**texts, "best": ended.result("kept/best.pt"), "end": ended.result()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    return outcome(train_plainly(tmp_path_factory.mktemp("plain"), TRAINING, ["nowhere", "out.pt"]))


def test_a_process_that_fails_goes_on_from_its_last_boundary_to_the_same_end(
    tmp_path: Path, undisturbed: dict[str, object]
) -> None:
    places = ["forward", "memory", "update", "line", "file"]

    ended = supervised(
        tmp_path,
        TRAINING,
        [",".join(places), "out.pt"],
        settings=(*EVERY_BOUNDARY, "restart.crash_limit=9"),
    )

    assert ended.returncode == 0, ended.stderr
    causes = ["exception", "out_of_memory", "exception", "exception", "exception", "completed"]
    assert [e["cause"] for e in ended.events("worker_exited")] == causes
    steps = [PLACES[place] for place in places]
    saved = [(e["step"], e["reason"]) for e in ended.events("checkpoint_saved")]
    assert saved == [(step, "parting") for step in steps]
    assert ended.events("checkpoint_stable") == []
    resumed = [(e["from_step"], e["exactness"]) for e in ended.events("resumed")]
    assert resumed == [(step, "exact") for step in steps]
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
    assert [e["step"] for e in stopped.events("checkpoint_saved")] == [13]
    assert resumed.returncode == 0, resumed.stderr
    assert [(e["from_step"], e["exactness"]) for e in resumed.events("resumed")] == [(13, "exact")]
    assert differences(undisturbed, outcome(resumed)) == []


@pytest.mark.exhaustive
def test_a_hang_that_sigterm_ends_loses_nothing(
    tmp_path: Path, undisturbed: dict[str, object]
) -> None:
    hang = ("watchdog.hang_timeout_s=3", "watchdog.stack_interval_s=0.3")

    ended = supervised(tmp_path, TRAINING, ["asleep", "out.pt"], settings=(*EVERY_BOUNDARY, *hang))

    assert ended.returncode == 0, ended.stderr
    assert [e["cause"] for e in ended.events("worker_exited")] == ["hang", "completed"]
    assert [(e["from_step"], e["exactness"]) for e in ended.events("resumed")] == [(13, "exact")]
    assert differences(undisturbed, outcome(ended)) == []
