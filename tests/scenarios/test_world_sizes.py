"""A run goes on with another number of ranks: the same weights, to the bit, and it is said."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.scenarios.runs import TIMEOUT_S, Ended, again, differences, supervised

SCRIPT = """
import hashlib, os, sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

mode, counts = sys.argv[1:3]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(5)
X = torch.randn(480, 9); Y = X.sum(1, keepdim=True).sin()
hidden = [nn.Linear(9, 35), nn.BatchNorm1d(35), nn.ReLU(), nn.Linear(35, 35), nn.Dropout(0.1)]
model = nn.Sequential(*hidden, nn.ReLU(), nn.Linear(35, 1))
torch.manual_seed(50 + rank)
if mode == "fsdp2":
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=dist.init_device_mesh("cpu", (world,)))
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (world,)))
else:
    model = DistributedDataParallel(model)
if mode == "zero1":
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.7)

def full(t):
    return (t.full_tensor() if hasattr(t, "full_tensor") else t).detach().clone()

def digest():
    inner = getattr(optimizer, "optim", optimizer)
    weights = [full(p) for p in model.parameters()]
    values = hashlib.sha256()
    for index, p in enumerate(model.parameters()):
        own = {k: full(v) for k, v in inner.state.get(p, {}).items()}
        every = [None] * world
        dist.all_gather_object(every, own)
        state = next((o for o in every if o), {})
        for key in sorted(state):
            values.update(state[key].numpy().tobytes())
    for weight in weights:
        values.update(weight.numpy().tobytes())
    return values.hexdigest()

updates = 0
def train(x, y):
    global updates
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    told = digest()
    if rank == 0:
        with open(f"told_{world}.txt", "a") as file:
            print(updates, told, optimizer.param_groups[0]["lr"], file=file)
    optimizer.step()
    schedule.step()
    updates += 1

if counts == "steps":
    while updates < 30:
        rows = torch.randint(0, 480, (16,))
        train(X[rows], Y[rows])
else:
    sampler = DistributedSampler(TensorDataset(X, Y))
    loader = DataLoader(TensorDataset(X, Y), batch_size=16, sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            train(x, y)
        total = torch.ones(())
        dist.all_reduce(total)
        assert total.item() == world
dist.destroy_process_group()
"""
LEAVES = "[{kind: sigterm_parent, step: 17, moment: forward}]"


def interrupted(folder: Path, mode: str, counts: str, ranks: int) -> Ended:
    """A run that was asked to end, and has saved its state."""
    ended = supervised(
        folder,
        SCRIPT,
        (mode, counts),
        settings=("checkpoint.every_steps=7",),
        options=("--nproc-per-node", str(ranks)),
        faults=LEAVES,
    )
    assert ended.returncode == 75, ended.stderr
    return ended


def told(folder: Path, ranks: int) -> dict[int, tuple[str, float]]:
    """Digest and learning rate by the update of the script's loop, before it was made."""
    lines = (folder / f"told_{ranks}.txt").read_text().splitlines()
    parts = [line.split() for line in lines]
    return {int(update): (digest, float(rate)) for update, digest, rate in parts}


def digest_of(exported: dict[str, Any]) -> str:
    """The script's own digest, of an exported checkpoint."""
    values = hashlib.sha256()
    for _, entries in sorted(exported["optimizer"]["state"].items()):
        for key in sorted(entries):
            values.update(entries[key].numpy().tobytes())
    for name, weight in exported["model"].items():
        if "running" not in name and "num_batches" not in name:
            values.update(weight.numpy().tobytes())
    return values.hexdigest()


def check_goes_on(ended: Ended, counts: str, before: int, now: int) -> None:
    step = ended.events("checkpoint_saved")[-1]["step"]
    exported = again(ended, "export", "run", "--to", "torch", "--output", "whole.pt")
    assert exported.returncode == 0, exported.stderr
    (ended.folder / f"told_{now}.txt").unlink(missing_ok=True)

    resumed = again(ended, "resume", "run", "--nproc-per-node", str(now), "--set", "faults=[]")

    assert resumed.returncode == 0, resumed.stderr
    events = resumed.events("resumed")
    assert [(e["from_step"], e["exactness"]) for e in events] == [(step, "approximate")] * now
    assert events[0]["reason"].startswith(f"{before} -> {now} ranks: weights and optimizer state")
    place = step if counts == "steps" else step * before // now
    lines = {u: line for u, line in told(ended.folder, now).items() if u >= place}
    assert min(lines) == place
    assert lines[place][0] == digest_of(ended.result("whole.pt"))
    # The schedule stands where the loop stands, and the loop comes to its own end.
    assert lines[place][1] == pytest.approx(0.01 * 0.7 ** (place // 10))
    assert max(lines) + 1 == (30 if counts == "steps" else 3 * (480 // 16 // now))


def test_two_ranks_become_one(tmp_path: Path) -> None:
    check_goes_on(interrupted(tmp_path, "zero1", "epochs", 2), "epochs", 2, 1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["ddp", "zero1", "fsdp2"])
@pytest.mark.parametrize("counts", ["steps", "epochs"])
@pytest.mark.parametrize(("before", "now"), [(2, 1), (2, 3), (3, 2)])
def test_any_number_of_ranks_goes_on(
    tmp_path: Path, mode: str, counts: str, before: int, now: int
) -> None:
    ended = interrupted(tmp_path / "run", mode, counts, before)
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    line += ["--nproc-per-node", str(before), "script.py", mode, counts]
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    # Not checked: gloo's threads now and then abort a rank of torch's own at its exit.
    subprocess.run(line, cwd=plain, check=False, timeout=TIMEOUT_S, env=environment)
    step = ended.events("checkpoint_saved")[-1]["step"]

    check_goes_on(ended, counts, before, now)

    # What was shared out is what torchrun's ranks hold there.
    assert told(plain, before)[step][0] == digest_of(ended.result("whole.pt"))


@pytest.mark.exhaustive
def test_a_run_with_other_ranks_finds_its_place_again_when_one_is_killed(tmp_path: Path) -> None:
    ended = interrupted(tmp_path, "fsdp2", "steps", 2)

    killed = again(
        ended,
        *("resume", "run", "--nproc-per-node", "3"),
        *("--set", "faults=[{kind: sigkill, step: 24, rank: 1}]"),
    )

    assert killed.returncode == 0, killed.stderr
    resumed = [(e["from_step"], e["exactness"]) for e in killed.events("resumed")]
    (restart,) = killed.events("restart")
    saved = restart["checkpoint_step"]
    assert 21 <= saved <= 24  # by the interval, or kept in memory since
    assert resumed == [(18, "approximate")] * 3 + [(saved, "approximate")] * 3
    assert max(told(tmp_path, 3)) + 1 == 30


def test_what_is_exported_is_loaded_by_the_lines_of_the_documentation(tmp_path: Path) -> None:
    text = Path("docs/howto.md").read_text()
    blocks = [block.partition("```")[0] for block in text.split("```python\n")[1:]]
    torchs, dcps = [block for block in blocks if "exported" in block]
    script = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(9):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
torch.save([model.state_dict(), optimizer.state_dict()], "out.pt")
"""
    ended = supervised(tmp_path, script, (), settings=("checkpoint.every_steps=4",))
    assert ended.returncode == 0, ended.stderr
    for form in ("torch", "dcp"):
        exported = again(ended, "export", "run", "--to", form)
        assert exported.returncode == 0, exported.stderr
    made = "import torch.distributed.checkpoint\n" + script.partition("for step")[0]
    (tmp_path / "load.py").write_text(
        made
        + torchs.replace("runs/a/", "run/")
        + "first = [t.clone() for t in model.state_dict().values()]\n"
        + made
        + dcps.replace("runs/a/", "run/")
        + "second = list(model.state_dict().values())\n"
        + "assert all(torch.equal(a, b) for a, b in zip(first, second))\n"
        + "torch.save(dict(model.state_dict()), 'loaded.pt')\n"
    )

    subprocess.run([sys.executable, "load.py"], cwd=tmp_path, check=True, timeout=TIMEOUT_S)

    newest = max((ended.run_dir / "checkpoints").glob("step_*"))
    wanted = torch.load(newest / "state.pt", weights_only=True)["models"]["model_0"]
    assert differences(ended.result("loaded.pt"), wanted) == []
