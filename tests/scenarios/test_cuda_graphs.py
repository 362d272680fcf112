"""While a CUDA graph is captured nothing of ours touches the device.

Stands in for a device: what is called within a capture is noted and not computed, which tensors on
the meta device do, and any read of a value raises there as here. `make gpu` captures real graphs.
"""

from __future__ import annotations

from pathlib import Path

from supervisor.storage.steps.flight_reader import FlightReader
from tests.scenarios.runs import differences, supervised, train_plainly

CAPTURED = """
import sys
import torch
from torch import nn

torch.manual_seed(2)
net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Tanh(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
graph = object()  # there is no device

def train(net, optimizer, x):
    loss = nn.functional.cross_entropy(net(x), torch.zeros(16, dtype=torch.long, device=x.device))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0, foreach=False)
    optimizer.step()
    return loss.detach()

def capture():
    torch.cuda._initialized, torch.cuda.is_current_stream_capturing = True, lambda: True
    noted = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to("meta")
    step = torch.optim.SGD(noted.parameters(), 1e-2, foreach=False)
    train(noted, step, torch.randn(16, 8).to("meta"))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(noted(torch.ones(8).to("meta")).sum()).backward()
    torch.cuda._initialized, torch.cuda.is_current_stream_capturing = False, lambda: False

losses = []
for i in range(12):
    losses.append(float(train(net, optimizer, torch.randn(16, 8))))
    if i == 5:
        capture()
    if "replay" in sys.argv:
        hooks = getattr(torch.cuda.graphs, "_global_replay_start_hooks", None)
        calls = [torch.cuda.CUDAGraph.replay] if hooks is None else [*hooks.values()]  # torch 2.14
        try:
            for call in calls:
                call(graph)
        except Exception:
            pass
torch.save({"net": net.state_dict(), "losses": losses}, sys.argv[1])
"""


def test_a_capture_is_left_alone_and_is_no_step(tmp_path: Path) -> None:
    plain = train_plainly(tmp_path / "plain", CAPTURED)
    ended = supervised(tmp_path / "run", CAPTURED)

    assert ended.returncode == 0, ended.stderr
    assert not differences(plain.result(), ended.result())
    assert ended.events("warning") == [] == ended.events("part_failed")
    with FlightReader(ended.run_dir / "steps" / "rank_0.steps") as reader:
        assert len(reader.records()) == 12


def test_replayed_graphs_are_told_once_and_make_no_resume_exact(tmp_path: Path) -> None:
    kill = "[{kind: sigkill, step: 11, moment: forward}]"
    ended = supervised(
        tmp_path,
        CAPTURED,
        ("out.pt", "replay"),
        settings=("checkpoint.every_steps=1", "checkpoint.background=false"),
        faults=kill,
    )

    assert ended.returncode == 0, ended.stderr
    told = [e["message"] for e in ended.events("warning") if "replays CUDA graphs" in e["message"]]
    assert len(told) == 2  # once in each attempt
    assert ended.events("warning")[-1]["message"].startswith("not judged: ")
    [resumed] = ended.events("resumed")
    assert resumed["exactness"] == "approximate"
