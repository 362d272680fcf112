"""An ordinary training that meets one misfortune; it knows nothing of a supervisor.

    python benchmarks/unlucky_training.py --task lm --fault weight --at 150 --folder DIR

A fault strikes once: a file in DIR says that it has, so that a training which is started again does
not meet it again. `--clip`, `--rule` and `--own-checkpoints` are what people do without us.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
import time
from collections import deque
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.fault_mark import mark_of
from benchmarks.unlucky_tasks import TASKS, Batch, Task, build

FAULTS = (
    "none", "nan_batch", "wild_batch", "poisoned_sample", "nan_gradient", "loss_spike", "weight",
    "optimizer", "lr_bug", "high_lr", "long_high_lr", "sigkill", "exception", "hang",
)  # fmt: skip
HIGH_LR = {"mlp": 40.0, "lm": 60.0, "cnn": 50.0, "vae": 40.0, "lstm": 40.0, "half": 40.0}
OWN_CHECKPOINT_STEPS = 25


class Misfortune:
    """The one fault of a run; every method does nothing at other steps and for other kinds."""

    def __init__(self, kind: str, at: int, mark: Path) -> None:
        self.kind, self.at, self._mark = kind, at, mark

    def strikes(self, step: int, *kinds: str) -> bool:
        if self.kind not in kinds or step != self.at or self._mark.exists():
            return False
        self._mark.touch()
        return True

    def on_batch(self, step: int, batch: Batch) -> Batch:
        if self.strikes(step, "sigkill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.strikes(step, "exception"):
            raise RuntimeError("the network file system did not answer")
        if self.strikes(step, "hang"):
            time.sleep(3600)
        sample = self.kind == "poisoned_sample" and step >= self.at and step % 40 == self.at % 40
        if sample or self.strikes(step, "nan_batch"):
            first = batch[0].clone()
            first[0, 0] = math.nan
            return (first, *batch[1:])
        if self.strikes(step, "wild_batch"):
            return (batch[0] * 1e4, *batch[1:])
        return batch

    def on_loss(self, step: int, loss: torch.Tensor) -> torch.Tensor:
        return loss * 1e4 if self.strikes(step, "loss_spike") else loss

    def on_gradients(self, step: int, task: Task) -> None:
        if self.strikes(step, "nan_gradient"):
            gradient = next(task.model.parameters()).grad
            gradient.view(-1)[0] = math.nan

    def lr_factor(self, step: int, name: str) -> float:
        if self.kind == "long_high_lr":
            return HIGH_LR[name] if self.at <= step < self.at + 30 else 1.0
        return 300.0 if self.strikes(step, "lr_bug") else 1.0

    def on_updated(self, step: int, task: Task) -> None:
        if self.strikes(step, "weight"):
            parameter = max(task.model.parameters(), key=torch.Tensor.numel)
            parameter.data.view(-1)[parameter.numel() // 2] = 6e4
        if self.strikes(step, "optimizer"):
            for state in task.optimizer.state.values():
                for name in ("exp_avg_sq", "square_avg"):
                    if name in state:
                        state[name].mul_(1e-9)
                if state.get("momentum_buffer") is not None:
                    state["momentum_buffer"].mul_(1e4)


class Rule:
    """Rules of others, each from its public description: what to do with a step's gradients."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._seen: deque[tuple[float, float]] = deque(maxlen=128)
        self._mean = self._variance = math.nan

    def limit(self, loss: float, norm: float) -> float:
        """Returns the norm to clip at: infinity for none, 0 to leave the step out."""
        if self.name == "clip":
            return 1.0
        if self.name == "skip_step":  # OLMo-core: 6 standard deviations of the last 128
            seen = np.array(self._seen)
            self._seen.append((loss, norm))
            if len(seen) < 64:
                return math.inf
            limits = seen.mean(0) + 6 * seen.std(0)
            return math.inf if loss <= limits[0] and norm <= limits[1] else 0.0
        if self.name == "zclip":
            return self._zclip(norm)
        return math.inf

    def _zclip(self, norm: float) -> float:
        if len(self._seen) < 25:
            self._seen.append((0.0, norm))
            norms = np.array(self._seen)[:, 1]
            self._mean, self._variance = float(norms.mean()), float(norms.var())
            return math.inf
        deviation = math.sqrt(self._variance) + 1e-6
        z = (norm - self._mean) / deviation
        limit = self._mean + 2.5 * deviation / (z / 2.5) if z > 2.5 else math.inf
        used = min(norm, limit)
        self._variance = 0.97 * self._variance + 0.03 * (used - self._mean) ** 2
        self._mean = 0.97 * self._mean + 0.03 * used
        return limit


def train(options: argparse.Namespace) -> dict[str, float]:
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    task = build(options.task, HIGH_LR[options.task] if options.fault == "high_lr" else 1.0)
    order = torch.Generator().manual_seed(100 + options.seed)
    base = [group["lr"] for group in task.optimizer.param_groups]
    misfortune = Misfortune(options.fault, options.at, mark_of(options.folder))
    rule = Rule(options.rule)
    saved, step = options.folder / "own.pt", 0
    if options.own_checkpoints and saved.exists():
        state = torch.load(saved, weights_only=True)
        task.model.load_state_dict(state["model"])
        task.optimizer.load_state_dict(state["optimizer"])
        order.set_state(state["order"])
        step = state["step"]
    warm_up = 0 if options.fault == "high_lr" else options.steps // 10
    while step < options.steps:
        done = max(0.0, step - warm_up) / max(1, options.steps - warm_up)
        if options.hard == "restarts":
            done = 3 * done % 1
        factor = (step + 1) / warm_up if step < warm_up else 0.5 * (1 + math.cos(math.pi * done))
        factor *= misfortune.lr_factor(step, options.task)
        for group, lr in zip(task.optimizer.param_groups, base, strict=True):
            group["lr"] = lr * factor
        batch = misfortune.on_batch(step, task.draw(order))
        if options.hard == "tiny":
            batch = tuple(part[:4] for part in batch)
        loss = misfortune.on_loss(step, task.loss(batch))
        task.optimizer.zero_grad()
        loss.backward()
        misfortune.on_gradients(step, task)
        keep = True
        if options.rule != "none":
            norm = float(nn.utils.clip_grad_norm_(task.model.parameters(), math.inf))
            limit = rule.limit(float(loss.detach()), norm)
            keep = limit > 0.0
            if norm > limit > 0.0:
                nn.utils.clip_grad_norm_(task.model.parameters(), limit)
        if keep:
            task.optimizer.step()
        misfortune.on_updated(step, task)
        step += 1
        if options.own_checkpoints and step % OWN_CHECKPOINT_STEPS == 0:
            state = {"model": task.model.state_dict(), "optimizer": task.optimizer.state_dict()}
            torch.save({**state, "order": order.get_state(), "step": step}, f"{saved}.new")
            os.replace(f"{saved}.new", saved)
    task.model.eval()
    with torch.no_grad():
        return {"final_loss": float(task.loss(task.valid)), "steps": step}


def run(options: argparse.Namespace) -> None:
    """Trains, and leaves ``result.json`` in the folder."""
    (options.folder / "result.json").write_text(json.dumps(train(options)))


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=TASKS, required=True)
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--at", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rule", choices=("none", "clip", "skip_step", "zclip"), default="none")
    parser.add_argument("--hard", choices=("no", "restarts", "tiny"), default="no")
    parser.add_argument("--own-checkpoints", action="store_true")
    parser.add_argument("--folder", type=Path, required=True)
    return parser.parse_args(words)


if __name__ == "__main__":
    run(parse())
