"""A rank that is killed comes back alone, and no other one goes back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.scenarios.runs import Ended, supervised

SCRIPT = """
import ctypes, hashlib, json, os, signal, sys
import torch, torch.distributed as dist
from torch import nn

kind, killed, step_killed, place = sys.argv[1:]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()

def mark(name):
    os.close(ctypes.CDLL(None).creat(f"marks/{name}".encode(), 0o600))  # none of the script's

mark(f"process_{rank}_{os.getpid()}")

def here(step, now):
    it = [str(rank), str(step), now] == [killed, step_killed, place]
    if it and not os.path.exists("marks/killed"):
        mark("killed")
        os.kill(os.getpid(), signal.SIGKILL)

torch.manual_seed(5)
norm = nn.LayerNorm if kind == "fsdp2" else nn.BatchNorm1d
model = nn.Sequential(nn.Linear(8, 32), norm(32), nn.Dropout(0.1), nn.Linear(32, 1))
groups = [dist.new_group([0, 1]), dist.new_group()] if kind == "groups" else [dist.group.WORLD]
torch.manual_seed(20 + rank)
if kind == "fsdp2":
    from torch.distributed.fsdp import fully_shard
    fully_shard(model)
else:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
heard = []
for step in range(24):
    x = torch.randn(16, 8)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    here(step, "forward")
    loss.backward()
    here(step, "backward")
    optimizer.step()
    told = loss.detach().clone()
    for group in groups:
        if rank in dist.get_process_group_ranks(group):
            dist.all_reduce(told, group=group)
    seen = [None] * world
    dist.all_gather_object(seen, [rank, told.item()])
    heard.append(seen)
    print(f"rank {rank} made {step}", flush=True)
whole = [p.full_tensor() if kind == "fsdp2" else p for p in model.parameters()]
weights = b"".join(w.detach().numpy().tobytes() for w in whole)
with open(f"end_{rank}.txt", "w") as file:
    json.dump([hashlib.sha256(weights).hexdigest(), heard], file)
dist.barrier()
here(step, "over")
print(f"rank {rank} is over", flush=True)
"""
KEPT = ("restart.healing=on", "parting.every_steps=5", "checkpoint.every_steps=100")


def trained(folder: Path, ranks: int, *words: str, healing: bool = True) -> Ended:
    """Returns a training in which a rank is killed; `words`: the script's arguments."""
    (folder / "marks").mkdir(parents=True, exist_ok=True)
    settings = KEPT if healing else KEPT[1:]
    options = ("--nproc-per-node", str(ranks))
    return supervised(folder, SCRIPT, words, settings=settings, options=options)


def ends(ended: Ended, ranks: int) -> list[str]:
    return [(ended.folder / f"end_{rank}.txt").read_text() for rank in range(ranks)]


def check(folder: Path, kind: str, ranks: int, killed: int, step: int, place: str) -> None:
    plain = trained(folder / "plain", ranks, kind, "-1", "0", place, healing=False)
    ended = trained(folder / "healed", ranks, kind, str(killed), str(step), place)

    assert ended.returncode == 0, ended.stderr
    assert ends(ended, ranks) == ends(plain, ranks)
    for rank in range(ranks):
        log = (ended.run_dir / f"logs/attempt_1/rank_{rank}.log").read_text()
        said = [f"rank {rank} made {step}" for step in range(24)] + [f"rank {rank} is over"]
        assert re.findall(r"^rank \d+ .*", log, re.MULTILINE) == said
    (healed,) = ended.events("healed")
    assert healed["rank"] == killed
    assert healed["answered"] > 0
    assert [event["attempt"] for event in ended.events("attempt_started")] == [1]
    processes = [len(list(ended.folder.glob(f"marks/process_{rank}_*"))) for rank in range(ranks)]
    assert processes == [1 + (rank == killed) for rank in range(ranks)]


def test_a_killed_rank_comes_back_alone_and_bit_for_bit(tmp_path: Path) -> None:
    check(tmp_path, "ddp", 2, 1, 13, "backward")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("kind", "ranks", "killed", "step", "place"),
    [
        ("ddp", 3, 0, 12, "forward"),
        ("fsdp2", 2, 1, 13, "forward"),
        ("fsdp2", 2, 0, 11, "backward"),
        ("groups", 3, 1, 14, "backward"),
        ("groups", 3, 2, 14, "forward"),
        ("ddp", 2, 0, 23, "over"),
    ],
)
def test_whichever_rank_is_killed(
    tmp_path: Path, kind: str, ranks: int, killed: int, step: int, place: str
) -> None:
    check(tmp_path, kind, ranks, killed, step, place)


@pytest.mark.exhaustive
def test_a_process_that_waits_becomes_the_killed_rank(tmp_path: Path) -> None:
    plain = trained(tmp_path / "plain", 2, "ddp", "-1", "0", "forward", healing=False)
    (tmp_path / "healed/marks").mkdir(parents=True)
    ended = supervised(
        tmp_path / "healed",
        SCRIPT,
        ("ddp", "1", "13", "backward"),
        settings=(*KEPT, "restart.standby=true"),
        options=("--nproc-per-node", "2"),
    )

    assert ended.returncode == 0, ended.stderr
    assert ends(ended, 2) == ends(plain, 2)
    assert len(ended.events("healed")) == 1


@pytest.mark.exhaustive
def test_a_rank_without_a_state_in_memory_has_all_start_again(tmp_path: Path) -> None:
    ended = trained(tmp_path, 2, "ddp", "1", "2", "forward")

    assert ended.returncode == 0, ended.stderr
    assert not ended.events("healed")
    assert "it has no state in memory yet: all ranks start again" in ended.stderr
