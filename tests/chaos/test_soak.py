"""Random faults one after another in one run: it ends, and leaves nothing behind but its journal.

The default is a few seconds; ``pytest tests/chaos --soak 200`` brings 200 faults.
"""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.scenarios.loop_styles import PRELUDE
from tests.scenarios.runs import Ended, supervised

NUMERIC = (
    "nan_data", "nan_loss", "nan_gradient", "loss_spike", "gradient_spike", "weight",
    "second_moment", "lr_spike", "disk_full", "slow",
)  # fmt: skip
DEADLY = ("sigkill", "damaged_checkpoint", "exception", "exit", "sigsegv", "out_of_memory")
EVERY_NTH_IS_DEADLY = 4
APART = (90, 160)
"""Steps between two faults: more than a run needs to count as having made progress."""
VERDICT_STEPS = 50 + 32
"""A treatment is judged after 50 steps, and calm steps are judged up to 32 at a time."""

SCRIPT = (
    PRELUDE
    + """
model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(int(sys.argv[1])):
    rows = torch.randint(96, (32,))
    loss = F.mse_loss(model(X[rows]), Y[rows])
    optimizer.zero_grad(); loss.backward(); optimizer.step()
model.eval()
with torch.no_grad():
    torch.save(F.mse_loss(model(X), Y), sys.argv[-1])
"""
)
SETTINGS = (
    "checkpoint.every_steps=40", "checkpoint.max_overhead=0.2", "policy.budget.per_hour=100000",
    "policy.budget.per_run=100000", "watchdog.hang_timeout_s=60",
)  # fmt: skip


def _faults(count: int, seed: int) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    steps = itertools.accumulate(chance.randint(*APART) for _ in range(count))
    made = []
    for number, step in enumerate(steps, start=1):
        kinds = DEADLY if number % EVERY_NTH_IS_DEADLY == 0 else NUMERIC
        made.append({"kind": chance.choice(kinds), "step": step})
        if made[-1]["kind"] == "slow":
            made[-1]["factor"] = 0.05
    return made


@pytest.mark.timeout(3600)
def test_a_run_outlives_whatever_comes_and_leaves_nothing_behind(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = int(request.config.getoption("--soak"))
    faults = _faults(count, seed=count)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    steps = faults[-1]["step"] + 150

    ended = supervised(
        tmp_path / "soak",
        SCRIPT,
        [str(steps), "out.pt"],
        settings=SETTINGS,
        faults=json.dumps(faults),
        timeout_s=3500.0,
        executed=True,
    )

    assert ended.returncode == 0, ended.stderr[-2000:]
    assert float(ended.result()) < 0.3
    deadly = sum(fault["kind"] in DEADLY for fault in faults)
    _is_consistent(ended, attempts=deadly + 1)
    # Torch makes that folder in any process.
    assert [path for path in temporary.iterdir() if "torchinductor" not in path.name] == []
    assert _processes_in(ended.folder) == []
    assert [p for p in ended.run_dir.rglob("*") if "staged" in p.name or "staging" in p.name] == []


def _is_consistent(ended: Ended, *, attempts: int) -> None:
    events = ended.events()  # every line is one JSON object
    assert all({"time", "attempt", "rank", "step", "kind"} <= event.keys() for event in events)
    numbers = [event["attempt"] for event in events]
    assert numbers == sorted(numbers)
    assert [e["attempt"] for e in events if e["kind"] == "attempt_started"] == [
        *range(1, attempts + 1)
    ]
    exits = [event for event in events if event["kind"] == "worker_exited"]
    assert [event["attempt"] for event in exits] == [*range(1, attempts + 1)]
    assert [event["kind"] for event in events][-1] == "run_finished"
    last = {event["attempt"]: event["last_step"] for event in exits}
    verdicts = {
        (event["name"], event["applied_at"])
        for event in events
        if event["kind"] == "action" and event["outcome"] in ("helped", "failed")
    }
    for event in events:
        if event["kind"] != "action" or event["outcome"] != "applied":
            continue
        seen_out = event["step"] + VERDICT_STEPS <= last[event["attempt"]]
        waits = event["name"] != "checkpoint" and event["source"] != "proof"
        if waits and seen_out:
            assert (event["name"], event["step"]) in verdicts, event


def _processes_in(folder: Path) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()).is_relative_to(folder):
                found.append(f"{process.pid}: {process.cmdline()}")
        except (psutil.Error, OSError):
            continue
    return found
