"""The trainings of `benchmarks.trial_step`, as a script: ``trial_step_tasks.py TASK RESULT``.

It knows nothing of a supervisor. All cases of a task are trained one after another, each from the
same seed. RESULT gets of each case its loss on held-out batches, and the steps after whose update
weights, buffers, optimizer and generator were what they had been before its forward, to the bit.
"""

from __future__ import annotations

import copy
import gc
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

STEPS, AT, EARLY = 400, 200, 30
"""Of each training, the step after which it is spoiled or changed, and of a wrong reload's file."""
BATCH, HELD_OUT = 64, 16
CLASSES, WIDTH = 10, 64

Batch = tuple[Tensor, Tensor]
Draw = Callable[[torch.Generator, bool], Batch]
Loss = Callable[[nn.Module, Batch], Tensor]
Spoil = Callable[["Training"], None]


@dataclass(slots=True)
class Training:
    """What a fault may reach."""

    model: nn.Module
    optimizer: Optimizer
    early: dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A training, and what is changed in it on purpose: name → draw and loss from `AT` on."""

    model: Callable[[], nn.Module]
    optimizer: Callable[[Iterator[nn.Parameter]], Optimizer]
    draw: Draw
    loss: Loss
    changes: dict[str, tuple[Draw, Loss]]


# --- faults of a script ----------------------------------------------------------------------


def add_noise(training: Training) -> None:
    """An average that is written into the weights, of the wrong scale."""
    for parameter in training.model.parameters():
        spread = float(parameter.data.std()) if parameter.numel() > 1 else 0.1
        parameter.data.add_(2.5 * spread * torch.randn_like(parameter.data))


def overwrite_layer(training: Training) -> None:
    """An initialisation that runs once more, with the wrong gain."""
    matrices = [p for p in training.model.parameters() if p.dim() > 1]
    nn.init.normal_(matrices[-1].data, std=3.0 * float(matrices[-1].data.std()))


def lose_moment(training: Training) -> None:
    """A second moment that is lost, or a momentum that has the sum of what should be a mean."""
    for state in training.optimizer.state.values():
        if "exp_avg_sq" in state:
            state["exp_avg_sq"].mul_(1e-6)
        elif "square_avg" in state:
            state["square_avg"].mul_(1e-6)
        else:
            state["momentum_buffer"].mul_(100.0)


def reload_wrongly(training: Training) -> None:
    """A checkpoint whose shards are read in another order."""
    for name, parameter in training.model.named_parameters():
        if parameter.dim() > 1:
            parameter.data.copy_(parameter.data.roll(1, 0))
        elif name in training.early:
            parameter.data.copy_(training.early[name])


FAULTS: dict[str, Spoil] = {
    "noise written to all weights": add_noise,
    "a layer overwritten": overwrite_layer,
    "a moment lost": lose_moment,
    "shards reloaded in another order": reload_wrongly,
}

# --- classes in noise ------------------------------------------------------------------------

_patterns = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(7))


def classes(generator: torch.Generator, is_late: bool, *, noise: float = 3.0) -> Batch:
    labels = torch.randint(0, CLASSES, (BATCH,), generator=generator)
    return _patterns[labels] + noise * torch.randn(BATCH, WIDTH, generator=generator), labels


def permuted(generator: torch.Generator, is_late: bool) -> Batch:
    inputs, labels = classes(generator, is_late)
    return inputs, (labels + 3) % CLASSES if is_late else labels


def half_random(generator: torch.Generator, is_late: bool) -> Batch:
    inputs, labels = classes(generator, is_late)
    others = torch.randint(0, CLASSES, (BATCH,), generator=generator)
    swapped = torch.rand(BATCH, generator=generator) < 0.5
    return inputs, torch.where(swapped, others, labels) if is_late else labels


def masked(generator: torch.Generator, is_late: bool) -> Batch:
    inputs, labels = classes(generator, is_late)
    kept = torch.rand(BATCH, WIDTH, generator=generator) < 0.4
    return inputs * kept if is_late else inputs, labels


def harder(generator: torch.Generator, is_late: bool) -> Batch:
    return classes(generator, is_late, noise=6.0 if is_late else 3.0)


def half_of_classes(generator: torch.Generator, is_late: bool) -> Batch:
    inputs, labels = classes(generator, is_late)
    if is_late:
        return inputs, labels
    labels = labels % (CLASSES // 2)
    return _patterns[labels] + 3.0 * torch.randn(BATCH, WIDTH, generator=generator), labels


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def smoothed(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.5)


def summed(model: nn.Module, batch: Batch) -> Tensor:
    return 4.0 * F.cross_entropy(model(batch[0]), batch[1])


def with_penalty(model: nn.Module, batch: Batch) -> Tensor:
    scores = model(batch[0])
    return F.cross_entropy(scores, batch[1]) + 0.1 * scores.square().mean()


def one_hot_squares(model: nn.Module, batch: Batch) -> Tensor:
    scores = model(batch[0])
    return 0.2 * (scores - 5.0 * F.one_hot(batch[1], CLASSES)).square().sum(1).mean()


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def normalised() -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTH, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1),
        nn.Linear(64, CLASSES),
    )  # fmt: skip


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Flatten(), nn.Linear(1024, CLASSES),
    )  # fmt: skip


# --- sequences -------------------------------------------------------------------------------

SIGNS = 24
_chain = torch.randn(SIGNS, SIGNS, generator=torch.Generator().manual_seed(8)).mul(2.5).softmax(1)
_other_chain = _chain[:, torch.randperm(SIGNS, generator=torch.Generator().manual_seed(9))]


def signs(
    generator: torch.Generator, is_late: bool, *, chain: Tensor = _chain, spoiled: float = 0.0
) -> Batch:
    drawn = [torch.randint(0, SIGNS, (BATCH,), generator=generator)]
    for _ in range(8):
        drawn.append(torch.multinomial(chain[drawn[-1]], 1, generator=generator)[:, 0])
    text = torch.stack(drawn, 1)
    noise = torch.randint(0, SIGNS, text.shape, generator=generator)
    is_noise = torch.rand(text.shape, generator=generator) < spoiled
    return torch.where(is_noise, noise, text)[:, :-1], text[:, 1:]


def other_language(generator: torch.Generator, is_late: bool) -> Batch:
    return signs(generator, is_late, chain=_other_chain if is_late else _chain)


def with_typos(generator: torch.Generator, is_late: bool) -> Batch:
    return signs(generator, is_late, spoiled=0.6 if is_late else 0.0)


def shifted(generator: torch.Generator, is_late: bool) -> Batch:
    inputs, following = signs(generator, is_late)
    return inputs, (following + 5) % SIGNS if is_late else following


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.body = nn.Embedding(SIGNS, 32), nn.GRU(32, 48, batch_first=True)
        self.head = nn.Linear(48, SIGNS)

    def forward(self, text: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(self.embedding(text))[0])
        return scores


def next_sign(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def two_ahead_too(model: nn.Module, batch: Batch) -> Tensor:
    scores = model(batch[0])
    later = F.cross_entropy(scores[:, :-1].flatten(0, 1), batch[1][:, 1:].flatten())
    return next_sign(model, batch) + later


# --- a function ------------------------------------------------------------------------------

_before, _after = torch.randn(2, 4, 1, generator=torch.Generator().manual_seed(10))


def function(
    generator: torch.Generator, is_late: bool, *, way: Tensor = _before, factor: float = 1.0
) -> Batch:
    inputs = torch.randn(BATCH, 4, generator=generator)
    noise = 0.3 * torch.randn(BATCH, 1, generator=generator)
    return inputs, factor * (inputs @ way).tanh() + noise


def other_function(generator: torch.Generator, is_late: bool) -> Batch:
    return function(generator, is_late, way=_after if is_late else _before)


def scaled_targets(generator: torch.Generator, is_late: bool) -> Batch:
    return function(generator, is_late, factor=2.0 if is_late else 1.0)


def noisy_inputs(generator: torch.Generator, is_late: bool) -> Batch:
    inputs, targets = function(generator, is_late)
    noise = torch.randn(BATCH, 4, generator=generator)
    return inputs + noise if is_late else inputs, targets


def squares(model: nn.Module, batch: Batch) -> Tensor:
    return F.mse_loss(model(batch[0]), batch[1])


def distances(model: nn.Module, batch: Batch) -> Tensor:
    return F.l1_loss(model(batch[0]), batch[1])


def small_network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))


TASKS: dict[str, Task] = {
    "perceptron": Task(
        model=perceptron,
        optimizer=lambda p: torch.optim.Adam(p, 3e-3),
        draw=classes,
        loss=cross_entropy,
        changes={
            "labels permuted": (permuted, cross_entropy),
            "half of the labels random": (half_random, cross_entropy),
            "label smoothing": (classes, smoothed),
            "inputs masked": (masked, cross_entropy),
        },
    ),
    "normalised": Task(
        model=normalised,
        optimizer=lambda p: torch.optim.SGD(p, 0.03, momentum=0.9),
        draw=classes,
        loss=cross_entropy,
        changes={
            "labels permuted": (permuted, cross_entropy),
            "loss times four": (classes, summed),
            "harder images": (harder, cross_entropy),
            "twice as many classes": (half_of_classes, cross_entropy),
        },
    ),
    "convolutions": Task(
        model=convolutions,
        optimizer=lambda p: torch.optim.AdamW(p, 2e-3),
        draw=classes,
        loss=cross_entropy,
        changes={
            "half of the labels random": (half_random, cross_entropy),
            "a penalty on the scores": (classes, with_penalty),
            "squares instead of entropy": (classes, one_hot_squares),
            "inputs masked": (masked, cross_entropy),
        },
    ),
    "reader": Task(
        model=Reader,
        optimizer=lambda p: torch.optim.Adam(p, 5e-3),
        draw=signs,
        loss=next_sign,
        changes={
            "another language": (other_language, next_sign),
            "typos": (with_typos, next_sign),
            "other labels": (shifted, next_sign),
            "a second term": (signs, two_ahead_too),
        },
    ),
    "function": Task(
        model=small_network,
        optimizer=lambda p: torch.optim.RMSprop(p, 3e-3),
        draw=function,
        loss=squares,
        changes={
            "another function": (other_function, squares),
            "targets twice as large": (scaled_targets, squares),
            "noise on the inputs": (noisy_inputs, squares),
            "distances instead of squares": (function, distances),
        },
    ),
}

# --- training --------------------------------------------------------------------------------


def fingerprint(model: nn.Module, optimizer: Optimizer) -> str:
    """Of weights, buffers, the optimizer's state, and torch's generator."""
    found = xxhash.xxh3_128()
    for tensor in model.state_dict().values():
        found.update(tensor.numpy().tobytes())
    for state in optimizer.state.values():
        for value in state.values():
            found.update(value.numpy().tobytes() if isinstance(value, Tensor) else repr(value))
    found.update(torch.get_rng_state().numpy().tobytes())
    return found.hexdigest()


def train(task: Task, draw: Draw, loss_of: Loss, spoil: Spoil | None) -> dict[str, Any]:
    """Trains once, from the same seed; returns the loss on held-out batches, and its state."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    rate = optimizer.param_groups[0]["lr"]
    training = Training(model, optimizer, {})
    for step in range(STEPS):
        is_late = step >= AT
        batch = draw(generator, is_late)
        for group in optimizer.param_groups:
            group["lr"] = rate * (0.02 + 0.98 * 0.5 * (1.0 + math.cos(math.pi * step / STEPS)))
        loss = (loss_of if is_late else task.loss)(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == EARLY:
            training.early = copy.deepcopy(model.state_dict())
        if step == AT and spoil is not None:
            spoil(training)
    state = fingerprint(model, optimizer)
    model.eval()
    held_out = torch.Generator().manual_seed(2)
    with torch.no_grad():
        losses = [float(loss_of(model, draw(held_out, True))) for _ in range(HELD_OUT)]
    return {"loss": sum(losses) / len(losses), "state": state}


def main() -> None:
    torch.set_num_threads(1)
    name, result = sys.argv[1:]
    task = TASKS[name]
    cases: list[tuple[str, str, Draw, Loss, Spoil | None]] = [
        *(("state", fault, task.draw, task.loss, spoil) for fault, spoil in FAULTS.items()),
        *(("changed", what, draw, loss, None) for what, (draw, loss) in task.changes.items()),
        ("undisturbed", "undisturbed", task.draw, task.loss, None),
    ]
    found = []
    for kind, case, draw, loss, spoil in cases:
        found.append({"kind": kind, "case": case, **train(task, draw, loss, spoil)})
        gc.collect()  # the next optimizer leads at once where this one is gone
    Path(result).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
