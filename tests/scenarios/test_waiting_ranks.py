"""Ranks that wait for each other: which one they wait for, and in which collective."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.scenarios.runs import supervised

SCRIPT = """
import datetime, os, subprocess, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

how, backend = sys.argv[1:3]
limit = datetime.timedelta(seconds=4 if how == "comes late for a time limit" else 1800)
rank, device = int(os.environ["RANK"]), "cpu"
if backend == "nccl":
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
dist.init_process_group(backend, timeout=limit)
torch.manual_seed(rank)
model = DistributedDataParallel(nn.Linear(4, 1).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if how == "comes late for a time limit" and backend == "gloo" and rank == 0:  # as NCCL does
    subprocess.run('echo > "$TORCH_FR_DUMP_TEMP_FILE$RANK"', shell=True, check=True)
for step in range(40):
    if step == 20 and how == "calls another one":
        if rank == 0:
            dist.all_reduce(torch.ones(3, device=device))
        else:
            dist.all_gather([torch.ones(2, device=device)] * 2, torch.ones(2, device=device))
    if step == 20 and how != "calls another one" and rank == 1:
        time.sleep(1000)
    optimizer.zero_grad()
    model(torch.randn(8, 4, device=device)).square().mean().backward()
    optimizer.step()
    if device != "cpu":
        torch.cuda.synchronize()  # as a script does that prints its loss
"""
QUICK = ["watchdog.hang_timeout_s=6", "watchdog.stack_interval_s=1.5", "restart.crash_limit=1"]
CASES = {
    "calls another one": (
        QUICK,
        "rank 0 is in all_reduce of [3], rank 1 in all_gather of [2], both as number",
    ),
    "does not come": (QUICK, "rank 0 waits in all_reduce of [5], number"),
    "comes late for a time limit": (QUICK[2:], "rank 0 waited for too long: rank 1 has entered"),
}
NCCL = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
"""Written without such a machine: these have never run."""


@pytest.mark.parametrize(
    ("how", "backend"),
    [
        pytest.param("calls another one", "gloo", marks=pytest.mark.exhaustive),
        ("comes late for a time limit", "gloo"),
        pytest.param("does not come", "gloo", marks=pytest.mark.exhaustive),
        pytest.param("does not come", "nccl", marks=NCCL),
        pytest.param("comes late for a time limit", "nccl", marks=NCCL),
    ],
)
def test_the_rank_that_the_others_wait_for_is_named_with_its_collective(
    tmp_path: Path, how: str, backend: str
) -> None:
    settings, why = CASES[how]

    ended = supervised(
        tmp_path, SCRIPT, [how, backend], settings=settings, options=["--nproc-per-node", "2"]
    )

    (exited,) = ended.events("worker_exited")
    logs = ended.run_dir / "logs" / "attempt_1"
    assert (exited["cause"], exited["rank"]) == ("hang", 1)
    assert why in exited["evidence"][0]
    dumps = [event for event in ended.events("warning") if "torchfrtrace" in event["message"]]
    assert len(dumps) == len(list(logs.glob("nccl_trace_rank_0")))
    if backend == "gloo" and hasattr(torch._C._distributed_c10d, "_dump_fr_trace_json"):
        assert len(dumps) == (how == "comes late for a time limit")  # torch from 2.7 on
    assert (logs / "collectives_1.json").stat().st_mode & 0o077 == 0
