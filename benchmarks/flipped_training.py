"""A small training in which one bit of memory flips; what `benchmarks.corruption` runs.

Knows nothing of the supervisor: the same loop runs in plain python, and under it.
"""

from __future__ import annotations

import ctypes
import json
import math
import random
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from benchmarks.fault_mark import mark_of
from benchmarks.flipped_models import Training, build

TARGETS = ("weight", "first", "second", "mean", "variance", "average", "gradient")
"""First and second moment of the optimizer; running mean and variance of a normalisation; the
average that the script keeps of its weights; the gradient, between backward and update."""
_ENTRIES = {
    "first": ("exp_avg", "momentum_buffer"),
    "second": ("exp_avg_sq", "square_avg", "sum"),
}
BATCH = 32
SPIKE = 3.0
"""Times the median of the last losses, at which the spike rule leaves an update out."""


@dataclass(frozen=True, kw_only=True)
class Flip:
    """One bit of one element flips once.

    Attributes:
        target: one of `TARGETS`.
        bit: 0 is the lowest of the mantissa.
        step: after (a gradient: before) this update.
        seed: decides the element: each has the same chance.
    """

    target: str
    bit: int
    step: int
    seed: int


def train(
    folder: str,
    *,
    model: str,
    optimizer: str,
    dtype: str,
    seed: int,
    steps: int,
    flip: Mapping[str, object] | None = None,
    clip: float | None = None,
    skips_spikes: bool = False,
) -> None:
    """Trains, and writes ``result.json`` into `folder`.

    Args:
        clip: largest norm of the gradients, after a tenth of the steps.
        skips_spikes: an update whose loss leaps is left out.
    """
    torch.set_num_threads(1)
    training = build(model, optimizer, getattr(torch, dtype), seed)
    parameters = list(training.model.parameters())
    order = torch.Generator().manual_seed(1000 + seed)
    fault = Flip(**flip) if flip else None  # type: ignore[arg-type]
    struck = mark_of(Path(folder))
    losses: deque[float] = deque(maxlen=50)
    largest, has_leapt = 0.0, False
    for step in range(steps):
        rows = torch.randint(len(training.data[0]), (BATCH,), generator=order)
        loss = training.loss(training.model, tuple(part[rows] for part in training.data))
        training.optimizer.zero_grad()
        loss.backward()
        if fault and fault.step == step and fault.target == "gradient" and not struck.exists():
            _strike(training, fault, struck)
        is_warm = step >= steps // 10
        norm = float(nn.utils.clip_grad_norm_(parameters, clip if clip and is_warm else math.inf))
        if is_warm and not norm <= largest:
            largest = norm
        value = float(loss.detach())
        leaps = not math.isfinite(value)
        if len(losses) == losses.maxlen:
            leaps = leaps or value > SPIKE * statistics.median(losses)
        has_leapt = has_leapt or leaps
        if not (skips_spikes and leaps):
            training.optimizer.step()
        if math.isfinite(value):
            losses.append(value)
        training.update_average()
        if fault and fault.step == step and fault.target != "gradient" and not struck.exists():
            _strike(training, fault, struck)
    result = {
        "loss": _measure(training, training.model),
        "average_loss": _measure(training, training.average_model()),
        "largest_norm": largest,
        "has_leapt": has_leapt,
    }
    Path(folder, "result.json").write_text(json.dumps(result))


def _measure(training: Training, model: nn.Module) -> float:
    model.eval()
    with torch.no_grad():
        return float(training.loss(model, training.valid))


def _strike(training: Training, fault: Flip, struck: Path) -> None:
    tensors = _tensors(training, fault.target)
    place = random.Random(fault.seed).randrange(sum(t.numel() for t in tensors))
    for tensor in tensors:
        if place < tensor.numel():
            break
        place -= tensor.numel()
    before = float(tensor.detach().reshape(-1)[place])
    flip_bit(tensor, place, fault.bit)
    after = float(tensor.detach().reshape(-1)[place])
    struck.write_text(json.dumps({"before": before, "after": after, "shape": [*tensor.shape]}))


def flip_bit(tensor: torch.Tensor, place: int, bit: int) -> None:
    """As memory does that breaks: torch does not count it as a write."""
    size = tensor.element_size()
    address = tensor.data_ptr() + size * place + bit // 8
    (ctypes.c_uint8 * 1).from_address(address)[0] ^= 1 << (bit % 8)


def _tensors(training: Training, target: str) -> list[torch.Tensor]:
    parameters = list(training.model.parameters())
    if target == "weight":
        return parameters
    if target == "gradient":
        return [p.grad for p in parameters if p.grad is not None]
    if target == "average":
        return training.average_tensors()
    if target in ("mean", "variance"):
        end = "running_mean" if target == "mean" else "running_var"
        return [b for name, b in training.model.named_buffers() if name.endswith(end)]
    states = [training.optimizer.state[p] for p in parameters]
    return [state[key] for state in states for key in _ENTRIES[target] if key in state]
