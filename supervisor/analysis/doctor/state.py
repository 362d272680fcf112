"""``python -m supervisor.analysis.doctor.state``: the checks that need torch.

Prints the checks as one JSON list.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from supervisor.analysis.doctor.machine import Check
from supervisor.errors import SupervisorError
from supervisor.records import plain
from supervisor.training_state.registry import Registry
from supervisor.training_state.snapshot import copy_state
from supervisor.training_state.state import TrainingState, digest, read_state, write_state


def main() -> int:
    """Prints the checks; returns 0."""
    checks = [_version(), _device(), _half_precision(), _round_trip(), _generators()]
    json.dump(plain(checks), sys.stdout)
    return 0


def _version() -> Check:
    number = torch.__version__.split("+")[0].split(".")[:2]
    good = tuple(int(part) for part in number) >= (2, 6)
    detail = f"torch {torch.__version__}"
    return Check(name="torch", ok=good, detail=detail if good else f"{detail}: 2.6 is needed")


def _device() -> Check:
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        detail = f"CUDA {torch.version.cuda}: {', '.join(names)}"
        return Check(name="device", ok=True, detail=detail)
    if torch.version.cuda is not None:
        detail = f"torch is built for CUDA {torch.version.cuda} but finds no device: check the "
        return Check(name="device", ok=True, detail=f"{detail}driver, or train on the CPU")
    return Check(name="device", ok=True, detail="CPU only: torch is built without CUDA")


def _half_precision() -> Check:
    name = "half precision"
    if not torch.cuda.is_available():
        return Check(name=name, ok=True, detail="bfloat16 by autocast on the CPU")
    if torch.cuda.is_bf16_supported():
        return Check(name=name, ok=True, detail="the device computes in bfloat16")
    return Check(name=name, ok=True, detail="no bfloat16 here: use float16 with a GradScaler")


def _round_trip() -> Check:
    """Trains a small model, saves its state, overwrites everything, and restores it from disk."""
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.BatchNorm1d(16))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
    registry = Registry()
    registry.add_model(model)
    registry.add_optimizer(optimizer)
    state = TrainingState(registry)
    saved = copy_state(state.capture())
    before = digest(saved)
    try:
        with tempfile.TemporaryDirectory() as folder:
            write_state(Path(folder), saved)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.zero_()
            optimizer.state.clear()
            state.restore(read_state(Path(folder)))
    except (SupervisorError, OSError) as error:
        return Check(name="state", ok=False, detail=f"round trip failed: {error}")
    same = digest(copy_state(state.capture())) == before
    detail = f"saved, spoiled and restored: digest {before[:16]}" if same else "not restored"
    return Check(name="state", ok=same, detail=detail)


def _generators() -> Check:
    state = TrainingState(Registry())
    saved = copy_state(state.capture())
    first = _draw()
    state.restore(saved)
    if _draw() == first:
        return Check(name="random numbers", ok=True, detail="Python, NumPy and torch come back")
    return Check(name="random numbers", ok=False, detail="a generator does not come back")


def _draw() -> list[float]:
    drawn = [random.random(), float(np.random.rand()), float(torch.rand(()))]
    if torch.cuda.is_available():
        drawn.append(float(torch.rand((), device="cuda")))
    return drawn


if __name__ == "__main__":
    sys.exit(main())
