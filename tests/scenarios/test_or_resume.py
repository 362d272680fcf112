"""One command line for every start: `supervisor run --or-resume`, and SLURM's job script."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.scenarios.runs import TIMEOUT_S, Ended, again, differences, supervised, train_plainly

SCRIPT = """
import os, signal, sys, time, torch
torch.manual_seed(3)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(60):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    if step == 20:
        open("begun", "w").close()
    time.sleep(float(os.environ.get("STEP_S", "0")))
torch.save(model.state_dict(), sys.argv[1])
"""
RANKS_SCRIPT = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
open(f"end_{dist.get_rank()}.txt", "w").close()
"""
EXAMPLES = Path(__file__).parents[2] / "examples" / "scheduling"
LINE = ("run", "--or-resume", "--run-dir", "run", "--set", "report.enabled=false")


def line(folder: Path, *words: str) -> Ended:
    return again(Ended(folder, 0, "", ""), *LINE, *words)


def test_the_same_line_starts_continues_and_leaves_a_completed_run_alone(tmp_path: Path) -> None:
    wanted = train_plainly(tmp_path / "plain", SCRIPT).result()
    folder = tmp_path / "mine"
    faults = "[{kind: sigterm_parent, step: 30}]"
    first = supervised(folder, SCRIPT, options=("--or-resume",), faults=faults)
    assert first.returncode == 75

    second = line(folder, "--set", "faults=[]", "script.py", "out.pt")
    made = (folder / "out.pt").stat().st_mtime_ns
    third = line(folder, "script.py", "out.pt")

    assert (second.returncode, third.returncode) == (0, 0), second.stderr
    assert not differences(wanted, second.result())
    assert [event["exactness"] for event in second.events("resumed")] == ["exact"]
    assert "completed already" in third.stderr
    assert (folder / "out.pt").stat().st_mtime_ns == made
    other = folder / "other.py"
    other.write_text(SCRIPT)
    refused = line(folder, "other.py", "out.pt")
    assert refused.returncode == 64
    assert "not of other.py" in refused.stderr


def test_what_a_start_that_was_cut_short_left_is_no_obstacle_but_other_files_are(
    tmp_path: Path,
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    run = tmp_path / "run"
    (run / "orders").mkdir(parents=True)
    (run / "lease.lock").touch()
    (run / "thesis.tex").touch()
    refused = line(tmp_path, "script.py", "out.pt")
    assert refused.returncode == 64
    assert "thesis.tex" in refused.stderr
    (run / "thesis.tex").unlink()

    started = line(tmp_path, "script.py", "out.pt")

    assert started.returncode == 0, started.stderr


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def submit(
    folder: Path, example: str = "slurm.sbatch", **variables: str
) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "SUPERVISOR_CASES": str(folder / ".cases.sqlite"),
        "SCRIPT": "script.py",
        "SLURM_JOB_NAME": "train",
        "SLURM_JOB_ID": "4711",
        **variables,
    }
    line = ["bash", str(EXAMPLES / example)]
    return subprocess.Popen(line, cwd=folder, env=environment)


@pytest.mark.exhaustive
def test_a_slurm_job_that_is_told_to_leave_is_queued_again(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    package = Path(__file__).parents[2]
    program(
        tmp_path / "bin" / "supervisor",
        f'#!/bin/sh\nPYTHONPATH="{package}" exec "{sys.executable}" -m supervisor.cli.main "$@"\n',
    )
    program(tmp_path / "bin" / "scontrol", '#!/bin/sh\necho "$@" >> queued\n')
    (tmp_path / "script.py").write_text(SCRIPT.replace("sys.argv[1]", "'out.pt'"))
    wanted = train_plainly(tmp_path / "plain", SCRIPT).result()

    first = submit(tmp_path, STEP_S="0.1")
    deadline = time.monotonic() + TIMEOUT_S
    while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    first.terminate()  # as --signal=B:TERM does
    assert first.wait(TIMEOUT_S) == 75
    assert (tmp_path / "queued").read_text() == "requeue 4711\n"
    second = submit(tmp_path, SLURM_RESTART_COUNT="1")

    assert second.wait(TIMEOUT_S) == 0
    assert (tmp_path / "queued").read_text() == "requeue 4711\n"
    state: dict[str, Any] = json.loads((tmp_path / "runs/train-4711/run.json").read_text())
    assert state["job"] == {"SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "1"}
    assert not differences(wanted, Ended(tmp_path, 0, "", "").result())


@pytest.mark.exhaustive
def test_a_slurm_job_of_two_nodes_is_one_training(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    package = Path(__file__).parents[2]
    program(
        tmp_path / "bin" / "supervisor",
        f'#!/bin/sh\nPYTHONPATH="{package}" exec "{sys.executable}" -m supervisor.cli.main "$@"\n',
    )
    program(tmp_path / "bin" / "scontrol", "#!/bin/sh\necho 127.0.0.1; echo 127.0.0.2\n")
    program(
        tmp_path / "bin" / "srun",
        '#!/bin/sh\nshift\nSLURM_NODEID=0 "$@" & first=$!\nSLURM_NODEID=1 "$@" && wait $first\n',
    )
    (tmp_path / "script.py").write_text(RANKS_SCRIPT)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    variables = {"SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "n[1-2]", "RANKS": "1", "PORT": port}

    ended = submit(tmp_path, "slurm-nodes.sbatch", **variables)

    assert ended.wait(TIMEOUT_S) == 0
    assert sorted(path.name for path in tmp_path.glob("end_*")) == ["end_0.txt", "end_1.txt"]
    state: dict[str, Any] = json.loads((tmp_path / "runs/train-4711/run.json").read_text())
    assert (state["state"], state["world_size"], state["ranks"]["node_rank"]) == ("completed", 2, 0)


def test_the_kubernetes_manifest_gives_time_to_leave_and_knows_our_exit_codes() -> None:
    volume, job = yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text())
    spec = job["spec"]
    pod = spec["template"]["spec"]
    [container] = pod["containers"]
    by_code = {
        code: rule["action"]
        for rule in spec["podFailurePolicy"]["rules"]
        for code in rule.get("onExitCodes", {}).get("values", ())
    }

    assert by_code == {75: "Ignore", 64: "FailJob", 70: "FailJob"}
    assert pod["restartPolicy"] == "Never"  # podFailurePolicy needs it
    assert pod["terminationGracePeriodSeconds"] > 30
    assert container["command"][:3] == ["supervisor", "run", "--or-resume"]
    claims = [v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if len(v) > 1
              and "persistentVolumeClaim" in v]  # fmt: skip
    assert claims == [volume["metadata"]["name"]]
