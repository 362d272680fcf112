"""Which hooks a script's own loop calls, in their order, seen from outside."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# In a process of its own: the patches last as long as the process.
LISTENER = """
import json, sys, types, torch
from torch import nn
from supervisor.worker.core.call_state import CallState
from supervisor.worker.regions.patches_regions import instrument
from supervisor.worker.core.training_hooks import TrainingHooks

told = []
call_state = CallState()

def telling(name):
    def hook(self, *args, **kwargs):
        told.append(name)
        call_state.depth += name != "after_update"
        try:
            ours = (nn.Module, torch.optim.Optimizer)
            given = [a for a in args if callable(a) and not isinstance(a, ours)]
            if name == "backward":
                return args[1](args[0])
            if name == "clip":
                return args[2](args[1])
            if name in ("forward", "grad", "scale", "scaler_step", "scaler_call", "read", "fetch"):
                return given[-1]()
            return args[0] if name == "batch" else False if name == "skips_epoch" else None
        finally:
            call_state.depth -= name not in ("before_update",)
    return hook

methods = {name: telling(name) for name in TrainingHooks.__abstractmethods__}
Listener = type("Listener", (TrainingHooks,), methods)
session = types.SimpleNamespace(
    hooks=types.SimpleNamespace(now=Listener()), call_state=call_state,
    last_model=lambda: None, has_late_steps=False,
    batch_found=lambda loader, batch: None,
    object_found=lambda kind, found: told.append("found " + kind),
    has_parameters=lambda module: any(True for _ in nn.Module.parameters(module)),
    enters_autocast=lambda: False,
    update_failed=lambda optimizer, depth: told.append("update_failed"),
)
loading = types.SimpleNamespace(batch=telling("batch").__get__(session))
instrument(session, types.SimpleNamespace(now=loading))
model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.ones(3, 2)
found = {}
for name, loop in json.loads(sys.argv[1]).items():
    told.clear()
    call_state.active = True
    exec(loop)
    found[name] = [word for word in told if not word.startswith("found")]
print(json.dumps(found))
"""

UPDATE = ["before_update", "after_update"]


LOOPS = {
    "plain": (
        "model(x).sum().backward(); optimizer.step(); optimizer.zero_grad()",
        ["forward", "backward", *UPDATE],
    ),
    "clipping": (
        "model(x).sum().backward(); nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
        "optimizer.step()",
        ["forward", "backward", "clip", *UPDATE],
    ),
    "grad": ("torch.autograd.grad(model(x).sum(), model.parameters())", ["forward", "grad"]),
    "free backward": ("torch.autograd.backward([model(x).sum()])", ["forward", "backward"]),
    "loader": (
        "for batch, in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x)): "
        "model(batch)",
        ["batch", "forward"] * 3,
    ),
    "other thread": (
        "import threading; t = threading.Thread(target=model, args=(x,)); t.start(); t.join()",
        [],
    ),
    "turned off": ("call_state.turn_off(); model(x).sum().backward(); optimizer.step()", []),
}


@pytest.fixture(scope="module")
def hooks_called() -> dict[str, list[str]]:
    loops = {name: loop for name, (loop, _) in LOOPS.items()}
    done = subprocess.run(
        [sys.executable, "-c", LISTENER, json.dumps(loops)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_calls_these_hooks(hooks_called: dict[str, list[str]], loop: str) -> None:
    assert hooks_called[loop] == LOOPS[loop][1]


HOOKED = """
import torch, types
told, hooks = [], []
torch.cuda.graphs.register_graph_replay_start_hook = hooks.append
from supervisor.worker.core.call_state import CallState
from supervisor.worker.regions.patches_regions import _patch_graphs

call_state = CallState()
now = types.SimpleNamespace(graph_replays=lambda: told.append(1))
original = torch.cuda.CUDAGraph.replay
_patch_graphs(types.SimpleNamespace(
    hooks=types.SimpleNamespace(now=now), call_state=call_state
))
for active, depth in ((False, 0), (True, 0), (True, 1)):  # outside of regions alone
    call_state.active, call_state.depth = active, depth
    hooks[0](object())
assert len(told) == 1, told
assert torch.cuda.CUDAGraph.replay is original
"""


def test_replays_of_graphs_are_heard_by_torchs_own_hook_where_there_is_one() -> None:
    subprocess.run([sys.executable, "-c", HOOKED], check=True, timeout=120)
