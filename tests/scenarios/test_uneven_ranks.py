"""Ranks that are not alike: an empty shard, a NaN that one sees alone, an agent that dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.scenarios.runs import QUICK, TIMEOUT_S, plain, supervised, supervisor_command

SHARDED = """
import hashlib, os, sys, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo"); torch.manual_seed(0); rank = dist.get_rank()
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))  # 1 row: rank 1 has none
for layer in model: fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
torch.manual_seed(rank)
for step in range(40):
    if step == STEP_OF_NAN and rank in RANKS:
        with torch.no_grad(): model[0].weight.to_local()[0, 0] = float("nan")
    loss = (model(torch.randn(4, 8)) - 1).square().mean()
    loss.backward(); optimizer.step(); optimizer.zero_grad()
whole = b"".join(p.full_tensor().detach().numpy().tobytes() for p in model.parameters())
if rank == 0: open("end.txt", "w").write(hashlib.sha256(whole).hexdigest())
dist.destroy_process_group()
"""
TWO = ("--nproc-per-node", "2")
EVERY_8 = ("checkpoint.every_steps=8", "checkpoint.background=false")


def _sharded(step_of_nan: int, ranks: str) -> str:
    return SHARDED.replace("STEP_OF_NAN", str(step_of_nan)).replace("RANKS", ranks)


@pytest.mark.exhaustive
def test_a_training_with_an_empty_shard_rolls_back_in_memory(tmp_path: Path) -> None:
    ended = supervised(
        tmp_path, _sharded(20, "(0, 1)"), (), settings=("snapshot.every_steps=4",), options=TWO
    )

    assert ended.returncode == 0, ended.stderr
    assert len(ended.events("attempt_started")) == 1
    assert "rollback" in ended.actions()


@pytest.mark.parametrize("ranks", ["(0,)", pytest.param("(1,)", marks=pytest.mark.exhaustive)])
def test_where_one_rank_alone_holds_the_nan_all_go_back_to_one_snapshot(
    tmp_path: Path, ranks: str
) -> None:
    ended = supervised(
        tmp_path, _sharded(20, ranks), (), settings=("snapshot.every_steps=4",), options=TWO
    )

    assert ended.returncode == 0, ended.stderr
    assert len(ended.events("attempt_started")) == 1
    assert len(ended.events("rollback")) == 1


@pytest.mark.exhaustive
def test_where_a_shard_was_never_finite_all_ranks_refuse_to_go_back(tmp_path: Path) -> None:
    ended = supervised(tmp_path, _sharded(0, "(0,)"), (), options=TWO)

    assert ended.returncode == 70
    assert len(ended.events("attempt_started")) == 1
    assert "not finite" in ended.events("gave_up")[0]["reason"]


@pytest.mark.exhaustive
def test_a_rank_with_an_empty_shard_comes_back_exactly(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", *TWO, "script.py"]
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "script.py").write_text(_sharded(99, "()"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(line, cwd=tmp_path / "plain", env=environment, timeout=TIMEOUT_S, check=True)

    ended = supervised(
        tmp_path / "run",
        _sharded(99, "()"),
        (),
        settings=EVERY_8,
        options=TWO,
        faults="[{kind: sigkill, step: 13, rank: 1}]",
    )

    assert ended.returncode == 0, ended.stderr
    assert {event["exactness"] for event in ended.events("resumed")} == {"exact"}
    assert (ended.folder / "end.txt").read_text() == (tmp_path / "plain/end.txt").read_text()


WAITS = """
import os, sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo"); torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for step in range(30):
    model(torch.randn(4, 8)).square().mean().backward(); optimizer.step(); optimizer.zero_grad()
    if step == 20 and dist.get_rank() == 0 and not os.path.exists("struck"):
        print("here", flush=True)
        while True: time.sleep(0.1)  # until the test has struck
dist.destroy_process_group()
"""


def test_an_agent_that_dies_is_named_and_no_rank_is(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(WAITS)
    line = [*supervisor_command(), "run", "--run-dir", "run", *TWO]
    for setting in (*QUICK, *EVERY_8):
        line += ["--set", setting]
    process = subprocess.Popen(
        [*line, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while "here" not in process.stdout.readline():
        assert process.poll() is None
    (tmp_path / "struck").touch()

    _agent(process.pid).send_signal(signal.SIGKILL)

    _, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, stderr
    assert "killed: the agent that starts the ranks has ended (SIGKILL)" in stderr
    assert "rank 0 first" not in stderr


def _agent(parent: int) -> psutil.Process:
    for process in psutil.Process(parent).children(recursive=True):
        words = process.cmdline()
        if "supervisor.agent.__main__" in words and not any("subreaper.py" in w for w in words):
            return process
    raise AssertionError("no agent")


ONE = """
import os, sys, torch
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT")
found = [name in os.environ for name in names]
torch.manual_seed(0)
model = torch.nn.Linear(4, 1); optimizer = torch.optim.Adam(model.parameters())
for step in range(12):
    model(torch.randn(4, 4)).sum().backward(); optimizer.step()
torch.save([found, model.state_dict()], sys.argv[-1])
"""


def test_one_rank_that_was_asked_for_has_torchruns_variables(tmp_path: Path) -> None:
    expected = plain(tmp_path / "plain", ONE).result()

    ended = supervised(tmp_path / "run", ONE, options=("--nproc-per-node", "1"))

    assert ended.returncode == 0, ended.stderr
    found, weights = ended.result()
    assert (expected[0], found) == ([False] * 5, [True] * 5)
    assert weights["weight"].equal(expected[1]["weight"])
