"""A training of several ranks, started by torchrun or `supervisor run --nproc-per-node`.

    ranks_trainer.py MODE STEPS FOLDER

MODE is ddp, zero1 or fsdp2; with ``-slow`` each sample takes 0.1 ms to load, so that replays leave
batches out. Each rank writes ``FOLDER/end_<rank>.json``: the digest of the final
weights, the mean time of a step in the second half, and when each step ended.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

WIDTH = 128


class SlowDataset(TensorDataset):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        time.sleep(1e-4)
        return super().__getitem__(index)


def main(kind: str, steps: int, folder: Path) -> None:
    mode, _, speed = kind.partition("-")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    data = torch.randn(1536, 16)
    target = data.sum(1, keepdim=True).sin()
    layers = [nn.Linear(16, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1)]
    model: nn.Module = nn.Sequential(*layers, nn.ReLU(), nn.Linear(WIDTH, 1))
    torch.manual_seed(50 + rank)
    if mode == "fsdp2":
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (world,)))
    else:
        model = DistributedDataParallel(model)
    if mode == "zero1":
        optimizer: torch.optim.Optimizer = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.AdamW, lr=1e-3
        )
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    examples = (SlowDataset if speed == "slow" else TensorDataset)(data, target)
    sampler = DistributedSampler(examples)
    loader = DataLoader(examples, batch_size=32, sampler=sampler)
    ended: list[float] = []
    epoch = 0
    while len(ended) < steps:
        sampler.set_epoch(epoch)
        epoch += 1
        total = torch.zeros(())
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.detach()
            ended.append(time.time())
            if len(ended) >= steps:
                break
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} loss {total.item():.6f}", flush=True)
    values = [getattr(p, "full_tensor", lambda p=p: p)() for p in model.parameters()]
    digest = hashlib.sha256(b"".join(v.detach().numpy().tobytes() for v in values)).hexdigest()
    half = ended[len(ended) // 2 :]
    step_s = (half[-1] - half[0]) / (len(half) - 1)
    found = {"digest": digest, "step_s": step_s, "ended": ended}
    (folder / f"end_{rank}.json").write_text(json.dumps(found))
    del model  # freed behind its group, it sometimes hangs plain torchrun, or ends it with 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
