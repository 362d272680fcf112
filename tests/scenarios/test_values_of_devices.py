"""Where a read waits for a device, a step reads once, and finds what reads at once would find.

There is no device here: values on the CPU are treated as those of one.
"""

from pathlib import Path

import pytest

from supervisor.storage.steps.flight_reader import read_steps
from tests.scenarios.runs import Ended, differences, supervised

SCRIPT = """
import sys, torch
kind = sys.argv[2]
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=kind == "scaler")
reads = [0]
if "late" in sys.argv:
    from supervisor.worker.core import device_values
    device_values.READ_AT_ONCE.clear()
    to_list = device_values._TO_LIST
    def counted(values):
        reads[0] += 1
        return to_list(values)
    device_values._TO_LIST = counted
for step in range(40):
    optimizer.zero_grad(set_to_none=kind != "zeroed")
    for part in range(1 if kind == "clipped" else 3):
        x = torch.randn(16, 8)
        loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
        if (step, part) in {(12, 0), (20, 1)} or step == 30:
            loss = loss * float("nan")
        scaler.scale(loss).backward()
        if step in (12, 20) and part < 2:  # the script has seen it, and leaves these parts out
            optimizer.zero_grad(set_to_none=kind != "zeroed")
    scaler.unscale_(optimizer) if scaler.is_enabled() else None
    if kind == "clipped":
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
torch.save(net.state_dict(), sys.argv[1])
print("reads", reads[0])
"""
OTHERS = ("clipped", "zeroed", "scaler")
SETTINGS = ("checkpoint.every_steps=15", "checkpoint.background=false", "probes.enabled=false")


def rows(ended: Ended) -> list[list[float]]:
    steps = read_steps(ended.run_dir)
    return [steps[name].tolist() for name in ("step", "loss", "grad_norm", "loss_scale", "flags")]


@pytest.mark.parametrize(
    "kind", ["accumulated", *(pytest.param(k, marks=pytest.mark.exhaustive) for k in OTHERS)]
)
def test_late_values_are_those_that_are_read_at_once(tmp_path: Path, kind: str) -> None:
    at_once = supervised(tmp_path / "once", SCRIPT, ("out.pt", kind), settings=SETTINGS)
    late = supervised(tmp_path / "late", SCRIPT, ("out.pt", kind, "late"), settings=SETTINGS)

    assert late.returncode == at_once.returncode == 0, late.stderr
    assert repr(rows(late)) == repr(rows(at_once))
    assert late.actions() == at_once.actions()
    assert differences(late.result(), at_once.result()) == []
    reads = int(late.stdout.split()[-1])
    assert 40 <= reads <= 48  # once a step; more where the script clears gradients in a step
