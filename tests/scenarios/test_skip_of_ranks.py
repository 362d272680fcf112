"""Ranks leave out the loading of their batches in a fast-forward, each for itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.test_ranks import ends, group, torchrun

SCRIPT = """
import hashlib, time, torch, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)
torch.manual_seed(0)
class Slow(Dataset):
    rows = torch.randn(160, 8)
    def __len__(self): return 160
    def __getitem__(self, place):
        time.sleep(0.001)
        return self.rows[place] + 0.1 * torch.randn(8), self.rows[place][:3].argmax()
data = Slow()
sampler = DistributedSampler(data, seed=3)
loader = DataLoader(data, batch_size=4, sampler=sampler)
model = nn.parallel.DistributedDataParallel(
    nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.Linear(16, 3))
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(rank)
for epoch in range(3):
    total = torch.zeros(())
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        if LOOKS: print("all" if len(x[x[:, 0] > 0]) == len(x) else "some")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach() + x.mean()
    dist.all_reduce(total)
    print(epoch, total.item(), flush=True)
values = torch.cat([value.double().flatten() for value in model.state_dict().values()])
open(f"end_{rank}.txt", "w").write(hashlib.sha256(values.numpy().tobytes()).hexdigest())
dist.destroy_process_group()
"""
PURE = SCRIPT.replace("LOOKS", "False")
ONE_LOOKS = SCRIPT.replace("LOOKS", "rank == 1 and epoch == 1")
EVERY_12 = ("checkpoint.every_steps=12", "checkpoint.background=false")
KILL = "[{kind: sigkill, step: 51, rank: 1}]"


def test_ranks_leave_loading_out_and_come_back_exactly(tmp_path: Path) -> None:
    expected = torchrun(tmp_path / "plain", 2, PURE)

    killed = group(tmp_path / "killed", 2, *EVERY_12, faults=KILL, script=PURE)

    assert ends(killed.folder, 2) == expected, killed.stderr
    resumed = killed.events("resumed")
    assert [event["exactness"] for event in resumed] == ["exact", "exact"]
    assert min(event["batches_left_out"] for event in resumed) > 20
    assert killed.found("loading needed") == []


@pytest.mark.exhaustive
def test_where_one_rank_needs_a_batch_all_begin_again_and_load_all(tmp_path: Path) -> None:
    expected = torchrun(tmp_path / "plain", 2, ONE_LOOKS)

    killed = group(tmp_path / "killed", 2, *EVERY_12, faults=KILL, script=ONE_LOOKS)

    assert ends(killed.folder, 2) == expected, killed.stderr
    (needed,) = killed.found("loading needed")
    assert needed["rank"] == 1
    resumed = killed.events("resumed")
    assert {event["attempt"] for event in resumed} == {3}
    assert [(e["exactness"], e["batches_left_out"]) for e in resumed] == [("exact", 0)] * 2
