"""Ranks of a group: said at once, watched, and otherwise left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

from tests.scenarios.runs import QUICK, Ended, supervised, supervisor_command, train_plainly

RANK = """
import sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
rank, out = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method="file://" + sys.argv[3], rank=rank, world_size=2)
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
torch.manual_seed(1 + rank)
for step in range(60):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean() * (1e6 if step == 40 else 1)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
torch.save(model.module.state_dict(), out)
dist.destroy_process_group()
"""

SPAWN = """
import sys, torch, torch.multiprocessing as mp
def work(rank):
    torch.manual_seed(rank)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward(); optimizer.step()
if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
"""


def _two_ranks(folder: Path, *, is_supervised: bool, settings: tuple[str, ...] = ()) -> list[str]:
    """Runs both ranks at once; returns what they said on standard error."""
    folder.mkdir()
    (folder / "rank.py").write_text(RANK)
    processes = []
    for rank in range(2):
        line = [sys.executable]
        if is_supervised:
            line = [*supervisor_command(), "run", "--run-dir", f"run_{rank}"]
            for setting in (*QUICK, *settings):
                line += ["--set", setting]
        line += ["rank.py", str(rank), f"out_{rank}.pt", str(folder / "meet")]
        processes.append(
            subprocess.Popen(line, cwd=folder, stderr=subprocess.PIPE, stdout=2, text=True)
        )
    return [process.communicate(timeout=240)[1] for process in processes]


def test_ranks_are_only_watched_and_end_as_without_us(tmp_path: Path) -> None:
    _two_ranks(tmp_path / "plain", is_supervised=False)
    said = _two_ranks(
        tmp_path / "supervised", is_supervised=True, settings=("checkpoint.every_steps=10",)
    )

    for rank in range(2):
        expected = torch.load(tmp_path / f"plain/out_{rank}.pt", weights_only=True)
        found = torch.load(tmp_path / f"supervised/out_{rank}.pt", weights_only=True)
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        run = tmp_path / "supervised" / f"run_{rank}"
        assert not list((run / "checkpoints").glob("step_*"))
        journal = (run / "events.jsonl").read_text()
        assert '"outcome": "applied"' not in journal
        assert '"would_have"' in journal  # the step that is a million times too large is seen
        assert "2 ranks that the supervisor did not start" in said[rank]


def test_a_rank_that_is_killed_is_not_started_alone(tmp_path: Path) -> None:
    script = "import torch.distributed as d\nd.get_world_size = lambda *a: 2\n" + RANK
    script = script.replace("world_size=2", "world_size=1")  # nobody has to answer

    ended = supervised(
        tmp_path,
        script,
        ("0", "out.pt", str(tmp_path / "meet")),
        settings=["checkpoint.every_steps=10", "checkpoint.background=false"],
        faults="[{kind: sigkill, step: 30}]",
    )

    assert ended.returncode == 70
    assert "start all of them again" in ended.stderr
    assert len(ended.events("attempt_started")) == 1


def test_processes_that_the_script_spawns_are_named(tmp_path: Path) -> None:
    ended = supervised(tmp_path, SPAWN, ())

    assert ended.returncode == 0
    assert "2 processes of the script's own" in ended.stderr
    assert "not supervised" in ended.stderr


def test_an_environment_of_several_ranks_is_refused_unless_only_watched(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('ran')")
    line = [*supervisor_command(), "run", "--run-dir", "run"]
    env = {**os.environ, "WORLD_SIZE": "2", "RANK": "1"}

    refused = subprocess.run(
        [*line, "script.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
    )
    watched = subprocess.run(
        [*line, "--policy", "observe_only", "script.py"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert (refused.returncode, refused.stdout) == (64, "")
    assert "WORLD_SIZE is 2" in refused.stderr
    assert (watched.returncode, watched.stdout) == (0, "ran\n")


def test_the_environment_that_an_operator_gives_a_node_is_no_obstacle(tmp_path: Path) -> None:
    said = "import os; os.write(1, os.environ['WORLD_SIZE'].encode() + b'\\n')"
    (tmp_path / "script.py").write_text(said)
    line = [*supervisor_command(), "run", "--quiet", "--run-dir", "run", "--nproc-per-node", "2"]
    env = {**os.environ, "WORLD_SIZE": "4", "RANK": "1", "MASTER_ADDR": "training-master-0"}

    ended = subprocess.run(
        [*line, "script.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
    )

    assert (ended.returncode, ended.stdout) == (0, "2\n2\n")


def test_a_launcher_of_ranks_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [*supervisor_command(), "run", "-m", "torch.distributed.run", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 64
    assert "give the training script itself" in done.stderr


def test_a_group_of_one_rank_is_supervised_as_any_training(tmp_path: Path) -> None:
    script = RANK.replace("world_size=2", "world_size=1").replace("1e6 if step == 40 else 1", "1")
    words = ("0", "out.pt", str(tmp_path / "meet"))
    expected: Ended = train_plainly(tmp_path, script, words)
    weights = expected.result()
    (tmp_path / "meet").unlink(missing_ok=True)

    ended = supervised(
        tmp_path,
        script,
        ("0", "out.pt", str(tmp_path / "meet2")),
        settings=["checkpoint.every_steps=10", "checkpoint.background=false"],
        faults="[{kind: sigkill, step: 30}]",
    )

    assert ended.returncode == 0, ended.stderr
    assert all(torch.equal(ended.result()[name], weights[name]) for name in weights)
    assert not ended.found("several ranks")
