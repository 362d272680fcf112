"""Does one training of the corpus."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.corpus.bench import Bench
from benchmarks.corpus.conditions import CONDITIONS
from benchmarks.corpus.optimizers import OPTIMIZERS, adam_rms
from benchmarks.corpus.recipe import Recipe
from benchmarks.corpus.tasks import TASKS
from benchmarks.corpus.tasks.base import Task
from benchmarks.corpus.trace import INPUTS, LIVE, Trace
from supervisor.worker.step_record.input_watch import InputWatch

AFTER_THE_END = 3
"""Steps still recorded once a weight is not finite: nothing comes after that."""

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}


def train(recipe: Recipe) -> Trace:
    """Trains without any supervisor or treatment; the same recipe gives the same trace."""
    torch.manual_seed(recipe.seed)
    task = TASKS[recipe.architecture](torch.Generator().manual_seed(recipe.seed + 1))
    optimizer = OPTIMIZERS[recipe.optimizer](task.module.parameters(), recipe.lr)
    bench = Bench(recipe=recipe, task=task, optimizer=optimizer, at=step_of_change(recipe))
    rows: dict[str, list[float]] = defaultdict(list)
    loudest = _listen(task.module)
    inputs = _watch_inputs(task)
    scaler = torch.amp.GradScaler("cpu", enabled=recipe.precision == "fp16")
    carried, left = 0.0, AFTER_THE_END
    for step in range(recipe.steps):
        CONDITIONS[recipe.condition](bench, step)
        loudest[0] = 0.0
        row = _step(bench, scaler, step)
        row["loss"] += carried
        row["activation_max"] = loudest[0]
        row["others_trained"] = float(task.has_rival and step > 0)
        seen = inputs.judge(row["loss"], task.observed)
        row |= {name: seen.get(name, math.nan) for name in INPUTS}
        carried = task.second_half()
        for name, value in row.items():
            rows[name].append(value)
        if not row["weights_finite"]:
            left -= 1
            if left == 0:
                break
    return _trace(bench, {name: np.array(values) for name, values in rows.items()})


def step_of_change(recipe: Recipe) -> int:
    """The step at which the recipe's condition, if it changes anything, begins to."""
    return round(recipe.steps * random.Random(recipe.name).uniform(0.45, 0.6))


def _step(bench: Bench, scaler: Any, step: int) -> dict[str, float]:
    recipe, task, optimizer = bench.recipe, bench.task, bench.optimizer
    lr = recipe.lr * bench.lr_factor
    for group in optimizer.param_groups:
        group["lr"] = lr
    if not bench.keep_gradients:
        optimizer.zero_grad()
    dtype = PRECISIONS.get(recipe.precision)
    with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        loss = task.loss()
    scale = scaler.get_scale() if scaler.is_enabled() else math.nan
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    parameters = list(task.module.parameters())
    norm = float(nn.utils.clip_grad_norm_(parameters, recipe.clip or math.inf))
    row = {
        "loss": float(loss.detach()),
        "grad_norm": norm,
        "lr": lr,
        "loss_scale": scale,
        "outcome": float(loss.detach()) if math.isnan(task.outcome) else task.outcome,
        "adam_rms": adam_rms(optimizer),
        **{f"observed_{name}": value for name, value in task.observed.items()},
    }
    scaler.step(optimizer)
    scaler.update()
    row["weight_norm"] = float(nn.utils.get_total_norm(parameters))
    row["weights_finite"] = float(math.isfinite(row["weight_norm"]))
    return row


def _listen(module: nn.Module) -> list[float]:
    """A cell that holds the largest absolute output of any layer since it was last cleared."""
    cell = [0.0]

    def hook(layer: nn.Module, inputs: Any, output: Any) -> None:
        output = output[0] if isinstance(output, tuple) else output
        cell[0] = max(cell[0], float(output.detach().abs().max()))

    for layer in module.modules():
        if isinstance(layer, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.LSTM)):
            layer.register_forward_hook(hook)
    return cell


def _watch_inputs(task: Task) -> InputWatch:
    """What a live run sees of its batches, at the forwards of whole models."""
    watch = InputWatch()
    for module in vars(task).values():
        if isinstance(module, nn.Module):
            module.register_forward_pre_hook(lambda _, a, k: watch.saw(a, k), with_kwargs=True)
    return watch


def _trace(bench: Bench, rows: dict[str, np.ndarray]) -> Trace:
    names = ("loss", "grad_norm", "lr", "loss_scale", "outcome", "weights_finite", "others_trained")
    observed = {n.removeprefix("observed_"): v for n, v in rows.items() if n.startswith("observed")}
    return Trace(
        recipe=bench.recipe,
        columns={name: rows[name] for name in names},
        observed=observed,
        inputs={name: rows[name] for name in INPUTS},
        live={name: rows[name] for name in LIVE},
        intended=tuple(bench.intended),
        batch=bench.task.data.batch,
    )
