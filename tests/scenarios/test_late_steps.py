"""A script's run is the same whether its numbers come one step later or are waited for.

There is no device here: with `device.late_reads=on` the CPU's tensors count as those of one.
"""

from pathlib import Path

import pytest

from supervisor.storage.steps.flight_reader import read_steps
from tests.scenarios.runs import Ended, differences, supervised

SCRIPT = """
import os, sys, torch
from torch import nn
kind = sys.argv[2]
rank = int(os.environ.get("RANK", 0))
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))
if kind == "ranks":
    torch.distributed.init_process_group("gloo")
    net = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(net.parameters(), 1e-2, fused="scaler, not" not in kind)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 30)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled="scaler" in kind)
update = optimizer.step
if kind == "compiled":
    update = torch.compile(update, backend="eager")
for step in range(100):
    x = torch.randn(16, 8)
    loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
    if step == 80:
        loss = loss * float("nan")
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    if kind == "killed":
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    if "scaler" in kind:
        scaler.step(optimizer)
        scaler.update()
    else:
        update()
    schedule.step()
if rank == 0:
    torch.save([net.state_dict(), optimizer.state_dict()], sys.argv[1])
"""
TOLD = """
from supervisor.worker.core.device_values import READS
print("waits", READS.waits)
"""
SETTINGS = ("checkpoint.every_steps=45", "checkpoint.background=false", "probes.enabled=false")
MORE = ("scaler, not fused", "compiled", "killed", "ranks")


def rows(ended: Ended) -> list[list[float]]:
    steps = read_steps(ended.run_dir)
    return [steps[name].tolist() for name in ("step", "loss", "grad_norm", "loss_scale", "flags")]


@pytest.mark.parametrize(
    "kind",
    ["fused", "scaler", *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in MORE)],
)
def test_late_steps_are_those_that_are_waited_for(tmp_path: Path, kind: str) -> None:
    faults = "[{kind: sigkill, step: 75}]" if kind == "killed" else ""
    options = ("--nproc-per-node", "2") if kind == "ranks" else ()

    def run(how: str) -> Ended:
        settings = (*SETTINGS, f"device.late_reads={how}", "mistakes.enabled=false")
        return supervised(
            tmp_path / how,
            SCRIPT + TOLD,
            ("out.pt", kind),
            settings=settings,
            options=options,
            faults=faults,
        )

    at_once, late = run("off"), run("on")

    assert late.returncode == at_once.returncode == 0, late.stderr
    assert rows(late)[0] == list(range(100))
    assert repr(rows(late)) == repr(rows(at_once))
    assert late.actions() == at_once.actions()
    skipped = [event["step"] for event in late.events("update_skipped")]
    assert skipped == [event["step"] for event in at_once.events("update_skipped")]
    assert differences(late.result(), at_once.result()) == []
    assert [e["message"] for e in late.events("warning") if "failed" in e["message"]] == []
    if not (options or faults):
        waits = int(late.stdout.split("waits")[1])
        at_first, after_the_nan = 64 + 2, 19
        assert waits <= at_first + after_the_nan
