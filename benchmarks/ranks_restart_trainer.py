"""A DDP training in which the last rank is killed once; started by torchrun or the supervisor.

    ranks_restart_trainer.py STEPS KILL_AT SAVE_EVERY FOLDER

Rank 0 appends number and time of each step to ``FOLDER/.steps.txt``. With SAVE_EVERY above 0 the
script saves and loads a checkpoint of its own, as scripts for torchrun have to. Both files are
hidden ones: the supervisor leaves those as they are, and would take others back to the checkpoint.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main(steps: int, kill_at: int, save_every: int, folder: Path) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    own, killed, first = folder / "own.pt", folder / ".killed.txt", 0
    if save_every and own.exists():
        saved = torch.load(own, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    for step in range(first, steps):
        torch.manual_seed(1000 * step + rank)
        x = torch.randn(64, 64)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            with open(folder / ".steps.txt", "a") as file:
                print(step, time.time(), file=file)
            if save_every and (step + 1) % save_every == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "step": step + 1}, own.with_suffix(".new"))
                os.replace(own.with_suffix(".new"), own)
        if rank == world - 1 and step == kill_at and not killed.exists():
            killed.write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.02)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
