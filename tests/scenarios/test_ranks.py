"""Several ranks that `supervisor run --nproc-per-node` starts are one training."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scenarios.runs import TIMEOUT_S, Ended, again, supervised

SCRIPT = """
import hashlib, os, sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(7)
X = torch.randn(480, 8); Y = X.sum(1, keepdim=True).sin()
layers = [nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1)]
model = nn.Sequential(*layers)
torch.manual_seed(100 + rank)
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.7)
sampler = DistributedSampler(TensorDataset(X, Y))
loader = DataLoader(TensorDataset(X, Y), batch_size=16, sampler=sampler)
means = []
for epoch in range(4):
    sampler.set_epoch(epoch)
    total = torch.zeros(())
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        total += loss.detach()
    dist.all_reduce(total)
    seen = [None] * world
    dist.all_gather_object(seen, {"rank": rank, "steps": step})
    means.append(total.item() / world + sum(s["steps"] for s in seen))
    if rank == 0:
        torch.save(model.module.state_dict(), f"epoch_{epoch}.pt")
    dist.barrier()
def digest(tensors):
    return hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in tensors)).hexdigest()

with open(f"end_{rank}.txt", "w") as file:
    print(digest(model.parameters()), digest(model.buffers()), means, file=file)
dist.destroy_process_group()
"""
UNEQUAL = """
import dataclasses, hashlib
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

@dataclasses.dataclass
class Figures:
    rank: int
    loss: float
    where: tuple

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(3)
net = nn.Sequential(
    nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 3)
)
torch.manual_seed(50 + rank)
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
log = []
for step in range(26):
    n = 5 + (step * 7 * (rank + 1) + rank * 3) % 9
    x, y = torch.randn(n, 8), torch.randint(0, 3, (n,))
    out = model(x)
    loss = nn.functional.cross_entropy(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    right, count = (out.argmax(1) == y).sum().float(), torch.tensor(float(n))
    work = dist.all_reduce(right, async_op=True)
    dist.all_reduce(count)
    work.wait()
    log.append((right / count).item())
    if step % 4 == 3:
        told = [None] * world if rank == 0 else None
        dist.gather_object(Figures(rank, loss.item(), (step, n)), told, dst=0)
        box = [max(one.loss for one in told) if rank == 0 else None]
        dist.broadcast_object_list(box, src=0)
        log.append(box[0])
        if rank == 0:
            net.eval()
            with torch.no_grad():
                log.append(net(torch.ones(4, 8)).sum().item())
            net.train()
        dist.barrier()
        if rank == 0:
            dist.send(torch.tensor([step * 1.5]), 1)
        elif rank == 1:
            got = torch.zeros(1)
            dist.recv(got, 0)
            log.append(got.item())
weights = hashlib.sha256(b"".join(t.numpy().tobytes() for t in net.state_dict().values()))
with open(f"end_{rank}.txt", "w") as file:
    print(weights.hexdigest(), log, file=file)
dist.destroy_process_group()
"""
BY_FILES = """
import json, os, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(5)
model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(20 + rank)
heard = 0.0
for step in range(24):
    x = torch.randn(16, 8)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 4 == 3:
        if rank == 0:
            time.sleep(0.3)  # the others are there long before
            with open(f"told_{step}.json", "w") as file:
                json.dump({"bias": model.module.bias.item()}, file)
        dist.barrier()
        with open(f"told_{step}.json") as file:
            heard += json.load(file)["bias"]
with open(f"end_{rank}.txt", "w") as file:
    print([p.tolist() for p in model.parameters()], heard, file=file)
dist.destroy_process_group()
"""
IN_AUTOCAST = """
import ctypes, glob, os, shutil
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, libc = dist.get_rank(), ctypes.CDLL(None)
torch.manual_seed(5)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(20 + rank)
seen = []
for step in range(24):
    x = torch.randn(16, 8)
    with torch.autocast("cpu", torch.bfloat16):
        if step % 8 == 0 and step:
            with torch.no_grad():
                seen.append(model(x.sign()).float().mean().item())
        loss = nn.functional.mse_loss(model(x).float(), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 8 == 5:
        folder = f"saved_{step}"
        if rank == 0:
            os.makedirs(folder)
            os.close(libc.creat(f"{folder}/tokens.json".encode(), 0o600))  # out of Python's sight
        dist.barrier()
        torch.save(torch.get_rng_state(), f"{folder}/random_{rank}.pt")
        dist.barrier()
        saved = sorted(glob.glob("saved_*"), key=os.path.getmtime)
        if rank == 0 and len(saved) > 2:
            shutil.rmtree(saved[0])
        dist.barrier()
seen.append(sorted(glob.glob("saved_*")))
with open(f"end_{rank}.txt", "w") as file:
    print([p.tolist() for p in model.parameters()], seen, file=file)
dist.destroy_process_group()
"""
ONE_ALONE = """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(5)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
told = torch.zeros(1)
if rank == 0:  # as it is before any training
    with torch.no_grad():
        told += net(torch.ones(2, 8)).sum()
dist.broadcast(told, 0)
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(20 + rank)
heard = [told.item()]
log = open(f"log_{rank}.txt", "w")
for step in range(24):
    x = torch.randn(16, 8)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), file=log, flush=True)
    if step % 4 == 3:
        if rank == 0:  # with a graph, and before the others hear of it
            probe = torch.ones(2, 8, requires_grad=True)
            told = torch.autograd.grad(net(probe).sum(), probe)[0].sum().reshape(1)
            torch.save(net.state_dict(), f"step_{step}.pt")
        dist.broadcast(told, 0)
        heard.append(told.item())
log.close()
with open(f"end_{rank}.txt", "w") as file:
    print([p.tolist() for p in model.parameters()], heard, file=file)
dist.destroy_process_group()
"""
SHARDED = """
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(5)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
fully_shard(model, mesh=dist.init_device_mesh("cpu", (world,)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(20 + rank)
norms = []
for step in range(24):
    model.unshard(async_op=True)  # the whole weights are there at the boundary
    x = torch.randn(16, 8)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor().item())
    optimizer.step()
    if step % 6 == 5:
        states = get_state_dict(model, optimizer)
        dcp.save({"model": states[0], "optimizer": states[1]}, checkpoint_id=f"saved_{step}")
with open(f"end_{rank}.txt", "w") as file:
    print([p.full_tensor().tolist() for p in model.parameters()], norms, file=file)
dist.destroy_process_group()
"""
COMPILED = """
import os
os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.abspath("cache")
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))

    def forward(self, x):
        return self.layers(x)

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(5)
model = torch.compile(DistributedDataParallel(Net()))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(20 + rank)
for step in range(14):
    x = torch.randn(16, 8)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with open(f"end_{rank}.txt", "w") as file:
    print([p.tolist() for p in model.parameters()], file=file)
dist.destroy_process_group()
"""
A_STEP_LATE = """
import time
import torch, torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(5)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(20 + rank)
under_way = None
for step in range(16):
    x = torch.randn(16, 8)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    if under_way is not None:  # the sums of the step before, while this one was computed
        for p, work, total in zip(model.parameters(), *under_way):
            work.wait()
            p.grad = total / world
    optimizer.step()
    time.sleep(0.3 * rank)
    under_way = [dist.all_reduce(g, async_op=True) for g in gradients], gradients
with open(f"end_{rank}.txt", "w") as file:
    print([p.tolist() for p in model.parameters()], file=file)
dist.destroy_process_group()
"""
BY_FUTURES = (
    A_STEP_LATE.replace("zip(model.parameters(), *under_way)", "zip(model.parameters(), under_way)")
    .replace("for p, work, total in", "for p, mean in")
    .replace("            work.wait()\n", "")
    .replace("total / world", "mean.wait()")
    .replace("    under_way = [dist.all_reduce(g, async_op=True)", "    under_way = [mean_of(g)")
    .replace("gradients], gradients", "gradients]")
    .replace("with open", "for mean in under_way:\n    mean.wait()\ndel under_way, mean\nwith open")
    .replace(
        "under_way = None\n",
        """under_way = None
def mean_of(gradient):
    summed = dist.all_reduce(gradient, async_op=True).get_future()
    return summed.then(lambda future: future.value()[0] / world)
""",
    )
)
OVERWRITING = """
import os
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(5)
model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(20 + rank)
begin = 0
if os.path.exists("saved/.metadata"):
    states = get_state_dict(model, optimizer)
    state = {"model": states[0], "optimizer": states[1], "epoch": 0}
    dcp.load(state, checkpoint_id="saved")
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    begin = state["epoch"]
for epoch in range(begin, 6):
    for _ in range(5):
        x = torch.randn(16, 8)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    states = get_state_dict(model, optimizer)
    state = {"model": states[0], "optimizer": states[1], "epoch": epoch + 1}
    dcp.save(state, checkpoint_id="saved")
with open(f"end_{rank}.txt", "w") as file:
    print([p.tolist() for p in model.parameters()], file=file)
dist.destroy_process_group()
"""
PIPELINE = """
import torch, torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
last = world - 1
seed, scale = [11 if rank == 0 else None], torch.full((1,), 0.5 if rank == 0 else 0.0)
dist.broadcast_object_list(seed, 0)
dist.broadcast(scale, 0)
torch.manual_seed(seed[0] + rank)
stage = nn.Linear(6, 16) if rank == 0 else nn.Sequential(nn.Tanh(), nn.Linear(16, 16))
optimizer = torch.optim.SGD(stage.parameters(), lr=0.1 * scale.item(), momentum=0.9)
seen = []
for step in range(24):
    optimizer.zero_grad()
    if rank == 0:
        x = torch.randn(16, 6)
        h = stage(x)
        dist.send(x.argmax(1), last)
    else:
        if rank == last:
            y = torch.empty(16, dtype=torch.long)
            source = dist.recv(y)  # before its first forward, and not said from whom
            seen.append((source, y.sum().item()))
        given = torch.empty(16, 16)
        dist.recv(given, rank - 1)
        h = stage(given.requires_grad_())
    if rank == last:
        loss = nn.functional.cross_entropy(h, y)
        loss.backward()
        seen.append(loss.item())
    else:
        dist.send(h.detach(), rank + 1)
        gradient = torch.empty_like(h)
        dist.recv(gradient, rank + 1)
        h.backward(gradient)
    if rank > 0:
        dist.send(given.grad, rank - 1)
    optimizer.step()
with open(f"end_{rank}.txt", "w") as file:
    print([p.tolist() for p in stage.parameters()], seen, file=file)
dist.destroy_process_group()
"""
ADDED_UP = """
import contextlib
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(5)
layers = [nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1)]
model = DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(20 + rank)
loader = DataLoader(TensorDataset(torch.randn(75, 8)), batch_size=12, shuffle=True)
for epoch in range(6):
    for i, (x,) in enumerate(loader):
        is_last = i % 4 == 3 or i + 1 == len(loader)
        with contextlib.nullcontext() if is_last else model.no_sync():
            nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
with open(f"end_{rank}.txt", "w") as file:
    print([t.tolist() for t in model.state_dict().values()], file=file)
dist.destroy_process_group()
"""
EVERY_8 = ("checkpoint.every_steps=8",)


def ends(folder: Path, ranks: int) -> list[str]:
    return [(folder / f"end_{rank}.txt").read_text() for rank in range(ranks)]


def torchrun(folder: Path, ranks: int, script: str = SCRIPT) -> list[str]:
    folder.mkdir()
    (folder / "script.py").write_text(script)
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    line += ["--nproc-per-node", str(ranks), "script.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for _ in range(4):  # gloo's threads now and then abort a rank of torch's own at its exit
        if not subprocess.run(line, cwd=folder, timeout=TIMEOUT_S, env=environment).returncode:
            return ends(folder, ranks)
    pytest.fail("torchrun itself failed four times")


def group(
    folder: Path,
    ranks: int,
    *settings: str,
    faults: str = "",
    script: str = SCRIPT,
    timeout_s: float = TIMEOUT_S,
) -> Ended:
    """What is due is on disk when a rank is killed: the same resume every time."""
    options = ("--nproc-per-node", str(ranks))
    return supervised(
        folder,
        script,
        (),
        settings=("checkpoint.background=false", *settings),
        options=options,
        faults=faults,
        timeout_s=timeout_s,
    )


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_a_rank_that_dies_costs_nothing_but_time(tmp_path: Path, ranks: int) -> None:
    expected = torchrun(tmp_path / "torchrun", ranks)
    faults = "[{kind: sigkill, step: 13, rank: 1}, {kind: exception, step: 27, moment: backward}]"

    ended = group(tmp_path / "run", ranks, *EVERY_8, faults=faults)

    assert ended.returncode == 0, ended.stderr
    assert ends(ended.folder, ranks) == expected
    exits = ended.events("worker_exited")
    assert [e["cause"] for e in exits] == ["killed", "exception", "completed"]
    assert [e["evidence"][-1] for e in exits[:2]] == [
        f"rank 1 ended first of {ranks}",
        f"rank 0 ended first of {ranks}",
    ]
    assert {e["exactness"] for e in ended.events("resumed")} == {"exact"}
    logs = sorted(path.name for path in (ended.run_dir / "logs/attempt_1").iterdir())
    assert [name for name in logs if name.endswith(".log")] == [
        f"rank_{rank}.log" for rank in range(ranks)
    ]


@pytest.mark.exhaustive
def test_ranks_without_room_for_copies_write_while_the_training_waits(tmp_path: Path) -> None:
    expected = torchrun(tmp_path / "torchrun", 2)
    faults = "[{kind: sigkill, step: 13, rank: 1}]"

    ended = group(tmp_path / "run", 2, *EVERY_8, "snapshot.max_share=0.000000001", faults=faults)

    assert ended.returncode == 0, ended.stderr
    assert ends(ended.folder, 2) == expected
    assert {e["from_step"] for e in ended.events("resumed")} == {8}
    assert {e["exactness"] for e in ended.events("resumed")} == {"exact"}
    assert ended.found("copies held") == []
    assert "no copy of the state" in ended.stderr


NEVER_SAVED = ("checkpoint.every_steps=1000", "parting.every_steps=1")


@pytest.mark.exhaustive
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_without_any_save_costs_a_step(tmp_path: Path, rank: int) -> None:
    """Each rank's newest state is in memory that outlives it."""
    expected = torchrun(tmp_path / "torchrun", 3)
    faults = f"[{{kind: sigkill, step: 38, moment: update, rank: {rank}}}]"

    ended = group(tmp_path / "run", 3, *NEVER_SAVED, faults=faults)

    assert ended.returncode == 0, ended.stderr
    assert ends(ended.folder, 3) == expected
    (saved,) = ended.events("checkpoint_saved")
    assert (saved["step"] in (38, 39), saved["reason"]) == (True, "parting")
    resumed = {(e["rank"], e["from_step"], e["exactness"]) for e in ended.events("resumed")}
    assert resumed == {(rank, saved["step"], "exact") for rank in range(3)}


ASKED_TO_END = """
        if rank == 2 and (epoch, step) == (2, 1) and not os.path.exists(".asked"):
            open(".asked", "w").close()
            os.kill(os.getpid(), 15)
        loss.backward()
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["exception", "out_of_memory", "sigterm"])
def test_a_rank_that_fails_without_any_save_costs_no_step(tmp_path: Path, kind: str) -> None:
    expected = torchrun(tmp_path / "torchrun", 3)
    if kind == "sigterm":
        script = SCRIPT.replace("        loss.backward()\n", ASKED_TO_END)
        stopped = group(tmp_path / "run", 3, *NEVER_SAVED, script=script)
        assert stopped.returncode == 75, stopped.stderr
        ended = again(stopped, "resume", "run")
    else:
        faults = f"[{{kind: {kind}, step: 21, moment: forward, rank: 2}}]"
        ended = group(tmp_path / "run", 3, *NEVER_SAVED, faults=faults)

    assert ended.returncode == 0, ended.stderr
    assert ends(ended.folder, 3) == expected
    resumed = {(e["from_step"], e["exactness"]) for e in ended.events("resumed")}
    assert len(resumed) == 1
    assert resumed <= {(21, "exact"), (22, "exact")}


def test_what_one_rank_does_alone_with_a_graph_or_before_the_training_keeps_nobody_waiting(
    tmp_path: Path,
) -> None:
    """All save where all stand at the same place; what each has written is that rank's file."""
    expected = torchrun(tmp_path / "torchrun", 2, ONE_ALONE)
    faults = "[{kind: sigkill, step: 14, rank: 1}]"

    ended = group(tmp_path / "run", 2, "checkpoint.every_steps=4", faults=faults, script=ONE_ALONE)

    assert ended.returncode == 0, ended.stderr
    assert ends(ended.folder, 2) == expected
    assert {e["exactness"] for e in ended.events("resumed")} == {"exact"}
    assert [e["cause"] for e in ended.events("worker_exited")] == ["killed", "completed"]


LOCAL_STEPS = """
import contextlib
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(2)
layers = [nn.Linear(8, 33), nn.Tanh(), nn.Linear(33, 7), nn.Tanh(), nn.Linear(7, 1)]
model = DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
torch.manual_seed(20 + rank)
for step in range(30):
    with contextlib.nullcontext() if step % 3 == 2 else model.no_sync():
        x = torch.randn(10, 8)
        loss = nn.functional.mse_loss(model(x), x.norm(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
    optimizer.step()
with open(f"end_{rank}.txt", "w") as file:
    print([p.tolist() for p in model.parameters()], file=file)
dist.destroy_process_group()
"""
STATIC = SCRIPT.replace(
    "DistributedDataParallel(model)", "DistributedDataParallel(model, static_graph=True)"
)

REPLICATE = "distributed._composable.replicate import replicate"
EVALUATING_WRAPPER = SCRIPT.replace(
    "DistributedDataParallel(model)", "DistributedDataParallel(model).eval(); model.module.train()"
)
REPLICATED = (
    SCRIPT.replace("nn.parallel import DistributedDataParallel", REPLICATE)
    .replace("DistributedDataParallel(model)", "replicate(model, bucket_cap_mb=0.001)")
    .replace("model.module", "model")
    .replace("batch_size=16", "batch_size=17")  # the last batch is smaller
)
BY_TURNS = """
import hashlib
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

class Both(nn.Module):
    step = 0

    def __init__(self, *nets):
        super().__init__()
        self.nets = nn.ModuleList(nets)

    def forward(self, x):
        return self.nets[self.step // 6 % 2](x)

def net():
    layers = [nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)]
    return DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.01)

dist.init_process_group("gloo")
torch.manual_seed(4)
front, model = nn.Linear(8, 8), Both(net(), net())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(60 + dist.get_rank())
for step in range(24):
    model.step = step
    x = torch.randn(16, 8)
    optimizer.zero_grad()
    with torch.no_grad():
        y = front(x)
    nn.functional.mse_loss(model(y), x.sum(1, keepdim=True)).backward()
    optimizer.step()
weights = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
with open(f"end_{dist.get_rank()}.txt", "w") as file:
    print(weights.hexdigest(), file=file)
dist.destroy_process_group()
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "script",
    [LOCAL_STEPS, STATIC, EVALUATING_WRAPPER, REPLICATED, BY_TURNS],
    ids=["local steps", "static graph", "wrapper in evaluation mode", "replicated", "by turns"],
)
def test_three_ranks_add_up_their_gradients_in_the_same_order(tmp_path: Path, script: str) -> None:
    """Two ranks would not show it: the order of their sums makes no difference."""
    expected = torchrun(tmp_path / "torchrun", 3, script)
    faults = "[{kind: sigkill, step: 14, rank: 1}]"

    ended = group(tmp_path / "run", 3, "checkpoint.every_steps=4", faults=faults, script=script)

    assert ended.returncode == 0, ended.stderr
    assert ends(ended.folder, 3) == expected
    assert {e["exactness"] for e in ended.events("resumed")} == {"exact"}


@pytest.mark.exhaustive
def test_steps_that_add_up_their_gradients_before_they_average_them_come_back_exactly(
    tmp_path: Path,
) -> None:
    """The last batch of an epoch is smaller: its forward is computed in a replay, for its form."""
    expected = torchrun(tmp_path / "torchrun", 2, ADDED_UP)
    faults = "[{kind: sigkill, step: 7, rank: 1}]"

    ended = group(tmp_path / "run", 2, "checkpoint.every_steps=6", faults=faults, script=ADDED_UP)

    assert ended.returncode == 0, ended.stderr
    assert ends(ended.folder, 2) == expected
    assert {e["exactness"] for e in ended.events("resumed")} == {"exact"}


ASTRAY = """
import os
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
is_again = os.path.exists(f".begun_{rank}")
os.system(f"touch .begun_{rank}")
torch.manual_seed(5)
model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(20 + rank)
for step in range(24):
    x = torch.randn(16, 8)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if is_again and rank == 1 and step == 5:
        loss.item()  # what the first attempt has not read
with open(f"end_{rank}.txt", "w") as file:
    print(step, [p.tolist() for p in model.parameters()], file=file)
dist.destroy_process_group()
"""


@pytest.mark.exhaustive
def test_where_one_rank_goes_astray_in_its_replay_none_goes_on_from_there(tmp_path: Path) -> None:
    """It would have more steps left than the others, and wait for them at the end."""
    faults = "[{kind: sigkill, step: 14, rank: 0}]"

    ended = group(tmp_path / "run", 2, *EVERY_8, faults=faults, script=ASTRAY)

    assert ended.returncode == 0, ended.stderr
    steps = [text.split()[0] for text in ends(ended.folder, 2)]
    assert steps == ["23", "23"]
    weights = {text.split(maxsplit=1)[1] for text in ends(ended.folder, 2)}
    assert len(weights) == 1
    exits = ended.events("worker_exited")
    assert [e["cause"] for e in exits] == ["killed", "exception", "completed"]
    assert "same step of their loops" in exits[1]["evidence"][0]


REFUSES = """
import os
if os.environ["RANK"] == "1" and os.path.exists("epoch_0.pt"):
    from supervisor.storage.script_files.set_aside import SetAside
    def refuse(*args):
        raise OSError("a disk that is full")
    SetAside.move_all = refuse
"""


@pytest.mark.exhaustive
def test_where_one_rank_cannot_begin_its_replay_all_go_another_way(tmp_path: Path) -> None:
    expected = torchrun(tmp_path / "torchrun", 2)
    faults = "[{kind: sigkill, step: 20, rank: 1}]"

    ended = group(tmp_path / "run", 2, *EVERY_8, faults=faults, script=REFUSES + SCRIPT)

    assert ended.returncode == 0, ended.stderr
    assert ends(ended.folder, 2) == expected
    _, second = ended.events("restart")
    assert second["checkpoint_step"] is None
    exits = ended.events("worker_exited")
    assert [e["cause"] for e in exits] == ["killed", "exception", "completed"]
    assert "a disk that is full" in exits[1]["evidence"][0]


@pytest.mark.exhaustive
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_that_receives_before_it_trains_what_another_sends_when_it_does_waits_for_nobody(
    tmp_path: Path, ranks: int
) -> None:
    expected = torchrun(tmp_path / "torchrun", ranks, PIPELINE)
    faults = "[{kind: sigkill, step: 14, rank: 1}]"

    ended = group(tmp_path / "run", ranks, *EVERY_8, faults=faults, script=PIPELINE)

    assert ended.returncode == 0, ended.stderr
    assert ends(ended.folder, ranks) == expected
    assert {e["exactness"] for e in ended.events("resumed")} == {"exact"}
    assert [e["cause"] for e in ended.events("worker_exited")] == ["killed", "completed"]


@pytest.mark.exhaustive
def test_shards_that_are_clipped_and_saved_by_the_script_come_back_exactly(tmp_path: Path) -> None:
    expected = torchrun(tmp_path / "torchrun", 2, SHARDED)
    faults = "[{kind: sigkill, step: 15, rank: 1}]"

    ended = group(tmp_path / "run", 2, *EVERY_8, faults=faults, script=SHARDED)

    assert ended.returncode == 0, ended.stderr
    assert ends(ended.folder, 2) == expected
    assert {e["exactness"] for e in ended.events("resumed")} == {"exact"}
    assert [e["cause"] for e in ended.events("worker_exited")] == ["killed", "completed"]
    for plain in sorted((tmp_path / "torchrun").glob("saved_*/*.distcp")):
        again = ended.folder / plain.relative_to(tmp_path / "torchrun")
        assert again.read_bytes() == plain.read_bytes()


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("g++") is None, reason="nothing compiles for the CPU")
def test_compiled_ranks_go_on_compiled(tmp_path: Path) -> None:
    """In a replay of ranks nothing is compiled, and compiled code draws other random numbers."""
    expected = torchrun(tmp_path / "torchrun", 2, COMPILED)
    faults = "[{kind: sigkill, step: 8, rank: 1}]"

    ended = group(tmp_path / "run", 2, "checkpoint.every_steps=6", faults=faults, script=COMPILED)

    assert ended.returncode == 0, ended.stderr
    assert ends(ended.folder, 2) == expected
    assert {e["exactness"] for e in ended.events("resumed")} == {"exact"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("script", [A_STEP_LATE, BY_FUTURES], ids=["handles", "futures"])
def test_sums_that_are_still_under_way_at_a_checkpoint_are_waited_for(
    tmp_path: Path, script: str
) -> None:
    expected = torchrun(tmp_path / "torchrun", 2, script)
    faults = "[{kind: sigkill, step: 10, rank: 1, moment: update}]"
    settings = ("checkpoint.every_steps=3", "parting.enabled=false")

    ended = group(tmp_path / "run", 2, *settings, faults=faults, script=script)

    assert ended.returncode == 0, ended.stderr
    assert ends(ended.folder, 2) == expected
    assert {e["exactness"] for e in ended.events("resumed")} == {"exact"}


@pytest.mark.exhaustive
def test_a_checkpoint_that_the_script_overwrites_and_begins_from_is_hidden_from_a_replay(
    tmp_path: Path,
) -> None:
    expected = torchrun(tmp_path / "torchrun", 2, OVERWRITING)
    faults = "[{kind: sigkill, step: 8, rank: 1}, {kind: sigkill, step: 16, rank: 0}]"
    settings = ("checkpoint.every_steps=4", "parting.enabled=false")

    ended = group(tmp_path / "run", 2, *settings, faults=faults, script=OVERWRITING)

    assert ended.returncode == 0, ended.stderr
    assert ends(ended.folder, 2) == expected
    assert {e["exactness"] for e in ended.events("resumed")} == {"exact"}


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_twenty_restarts_in_a_row_lose_no_attempt(tmp_path: Path) -> None:
    expected = torchrun(tmp_path / "torchrun", 2)
    kills = [(2 + 2 * number, number % 2) for number in range(20)]
    faults = ", ".join(f"{{kind: sigkill, step: {step}, rank: {rank}}}" for step, rank in kills)

    ended = group(
        tmp_path / "run",
        2,
        *NEVER_SAVED,
        "restart.progress_steps=1",
        faults=f"[{faults}]",
        timeout_s=600.0,
    )

    assert ended.returncode == 0, ended.stderr
    assert ends(ended.folder, 2) == expected
    causes = [e["cause"] for e in ended.events("worker_exited")]
    assert causes == ["killed"] * 20 + ["completed"]
    assert [e["exactness"] for e in ended.events("resumed")] == ["exact"] * 40


@pytest.mark.exhaustive
def test_a_loss_that_rises_on_one_rank_is_treated_alike_on_all(tmp_path: Path) -> None:
    faults = "[{kind: loss_spike, step: 40, rank: 1, every: true, factor: 300}]"

    ended = group(tmp_path, 2, "snapshot.every_steps=5", faults=faults)

    assert ended.returncode == 0, ended.stderr
    assert ended.actions()
    assert {event["rank"] for event in ended.events("action")} == {0}
    first, second = ends(ended.folder, 2)
    assert first.split()[0] == second.split()[0]
    assert "decided differently" not in (ended.run_dir / "events.jsonl").read_text()


@pytest.mark.exhaustive
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_with_other_shapes_messages_and_evaluations_come_back_exactly(
    tmp_path: Path, ranks: int
) -> None:
    """Nothing is sent in a replay: the first rank replays forwards that the others do not."""
    expected = torchrun(tmp_path / "torchrun", ranks, UNEQUAL)
    faults = "[{kind: sigkill, step: 14, rank: 1}]"

    ended = group(tmp_path / "run", ranks, *EVERY_8, faults=faults, script=UNEQUAL)

    assert ended.returncode == 0, ended.stderr
    assert ends(ended.folder, ranks) == expected
    (restart,) = ended.events("restart")
    saved = restart["checkpoint_step"]
    assert 8 <= saved <= 15  # by the interval, or kept in memory since
    resumed = [(e["from_step"], e["exactness"]) for e in ended.events("resumed")]
    assert resumed == [(saved, "exact")] * ranks


@pytest.mark.exhaustive
@pytest.mark.parametrize("script", [BY_FILES, IN_AUTOCAST], ids=["barriers", "autocast"])
def test_what_a_rank_writes_or_casts_for_an_evaluation_is_as_it_was_behind_a_replay(
    tmp_path: Path, script: str
) -> None:
    expected = torchrun(tmp_path / "torchrun", 2, script)
    faults = "[{kind: sigkill, step: 19, rank: 1}]"

    ended = group(tmp_path / "run", 2, *EVERY_8, faults=faults, script=script)

    assert ended.returncode == 0, ended.stderr
    assert ends(ended.folder, 2) == expected
    assert [e["cause"] for e in ended.events("worker_exited")] == ["killed", "completed"]
    assert {e["exactness"] for e in ended.events("resumed")} == {"exact"}


def test_what_one_rank_sees_is_treated_on_all_and_a_signal_saves_all(tmp_path: Path) -> None:
    faults = (
        "[{kind: nan_data, step: 9, rank: 1}, {kind: sigterm_parent, step: 30, moment: forward}]"
    )

    stopped = group(tmp_path, 2, *EVERY_8, faults=faults)
    assert stopped.returncode == 75, stopped.stderr
    skipped = [e for e in stopped.events("action") if e["name"] == "skip_update"]
    assert [(e["rank"], e["step"], e["outcome"]) for e in skipped if e.get("phase") is None] == [
        (0, 9, "applied")
    ]
    saved = [e["step"] for e in stopped.events("checkpoint_saved")]
    assert saved[-1] >= 30

    resumed = again(stopped, "resume", "run", "--set", "faults=[]")

    assert resumed.returncode == 0, resumed.stderr
    assert {(e["from_step"], e["exactness"]) for e in resumed.events("resumed")} == {
        (saved[-1], "exact")
    }
    first, second = ends(resumed.folder, 2)
    assert first.split()[0] == second.split()[0]  # each rank's own batches are in the buffers


@pytest.mark.exhaustive
def test_a_replica_that_differs_is_named_and_all_go_back_exactly(tmp_path: Path) -> None:
    expected = torchrun(tmp_path / "torchrun", 3)
    policy = tmp_path / "policy.yaml"
    policy.write_text(  # nothing but the comparison of checkpoints is to find it
        "defaults: [default]\nguard: {skip_spike: false, false_start: false}\nrungs: []\n"
    )
    options = ("--nproc-per-node", "3", "--policy", str(policy))
    faults = "[{kind: weight, step: 20, rank: 2}]"

    ended = supervised(
        tmp_path / "run", SCRIPT, (), settings=EVERY_8, options=options, faults=faults
    )

    assert ended.returncode == 0, ended.stderr
    found = [e for e in ended.events("corruption_found") if e["rule"] == "replica"]
    assert [(e["ranks"], e["healed"]) for e in found] == [([2], "rollback")]
    assert [e["exactness"] for e in ended.events("resumed")] == ["exact"] * 3
    assert "rank 2 holds another value" in ended.stderr
    assert ends(tmp_path / "run", 3) == expected
