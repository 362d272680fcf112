"""A run is scraped while it trains, and its last figures agree with the report's ledger."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from tests.parent.metrics.test_metrics import parsed
from tests.scenarios.loop_styles import PRELUDE
from tests.scenarios.runs import supervised, supervisor_command

LOOP = f"""{PRELUDE}
import os, time
model = make_model(); optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(60):
    i = torch.randint(0, 96, (8,))
    loss = F.mse_loss(model(X[i]), Y[i]) * (float("nan") if step == 25 else 1.0)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    while step == 50 and not os.path.exists("go"): time.sleep(0.05)
"""


def test_a_training_is_scraped_and_leaves_its_last_figures(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(LOOP)
    settings = (
        "metrics_port=0",
        "metrics_textfile=last.prom",
        "checkpoint.every_steps=10",
        "checkpoint.background=false",
        "restart.backoff_s=0.05",
        "faults=[{kind: sigkill, step: 35}]",
    )
    line = [*supervisor_command(), "run", "--run-dir", "run"]
    for setting in settings:
        line += ["--set", setting]
    own = {"OMP_NUM_THREADS": "1", "SUPERVISOR_CASES": str(tmp_path / ".cases.sqlite")}
    with (
        open(tmp_path / "told", "w+") as told,
        subprocess.Popen(
            [*line, "script.py"], cwd=tmp_path, env=os.environ | own, stderr=told
        ) as run,
    ):
        live = scrape_at(tmp_path, step=50)
        (tmp_path / "go").touch()
        assert run.wait(120) == 0

    assert live["training_attempts"] == 2.0
    assert live["training_worker_exits_total{killed}"] == 1.0
    assert live["training_treatments_total{skip_update}"] >= 1.0
    assert 0.0 <= live["training_last_checkpoint_age_seconds"] < 600.0
    assert 0.0 < live["training_loss"] < 100.0
    assert 0.0 <= live["training_risk"] <= 1.0
    assert 0.0 < live["training_goodput_ratio"] < 1.0
    last = parsed((tmp_path / "last.prom").read_text())
    assert last["training_state{completed}"] == 1.0
    assert last["training_step"] == 59.0
    assert last["training_steps_total"] > 60.0  # some were made again
    ledger = json.loads((tmp_path / "run" / "report" / "report.json").read_text())["cost"]
    assert last["training_steps_total"] == ledger["useful_steps"] + ledger["replayed_steps"]


def scrape_at(folder: Path, step: int) -> dict[str, float]:
    """Scrapes the run until it has made `step`."""
    end_s = time.monotonic() + 120.0
    while time.monotonic() < end_s:
        url = re.search(r"http://127\.0\.0\.1:\d+/metrics", (folder / "told").read_text())
        if url:
            with urllib.request.urlopen(url[0], timeout=10) as answer:
                found = parsed(answer.read().decode())
            if found.get("training_step", -1.0) >= step and "training_risk" in found:
                return found
        time.sleep(0.1)
    raise AssertionError((folder / "told").read_text())


def test_a_port_in_use_starts_nothing(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = supervised(tmp_path, LOOP, settings=(f"metrics_port={port}",))

    assert ended.returncode == 64
    assert "in use: give another port, 0 for a free one" in ended.stderr
    assert not ended.run_dir.exists()


def test_useful_seconds_are_the_ledgers(tmp_path: Path) -> None:
    """The same run, judged live and from its directory."""
    from supervisor.parent.metrics.run_figures import Goodput
    from supervisor.ranks import FIRST_RANK
    from supervisor.report.facts.attempts import build_cost
    from supervisor.report.facts.run_data import load_material
    from supervisor.storage.run.rundir import RunDirectory
    from supervisor.storage.steps.flight_reader import FlightReader

    ended = supervised(
        tmp_path,
        LOOP.replace("step == 50", "False"),
        settings=("checkpoint.every_steps=10", "checkpoint.background=false"),
        faults="[{kind: sigkill, step: 35}]",
    )
    run = load_material(ended.run_dir)
    goodput = Goodput()
    with FlightReader(RunDirectory(ended.run_dir).steps(FIRST_RANK)) as reader:
        records, attempts = reader.records(), reader.read()["attempt"].tolist()
    for number in sorted(set(attempts)):
        for event in run.events:
            if event.attempt == number:
                goodput.saw(event)
        goodput.stepped(r for r, a in zip(records, attempts, strict=True) if a == number)

    assert ended.returncode == 0
    assert goodput.useful_s() == pytest.approx(build_cost(run).useful_s, rel=1e-6)
