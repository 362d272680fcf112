"""Batches of digits for the classifiers."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.corpus.material import glyphs
from benchmarks.corpus.tasks.base import Task


def draw_glyphs(task: Task) -> tuple[Tensor, Tensor]:
    """Shifted, noisy digits; at level 0 only the digits 0 to 4, without noise."""
    images, classes = glyphs()
    order = torch.arange(len(classes)) * 37 % len(classes)
    if task.data.level < 0.5:
        order = order[classes[order] < 5]
    chosen = order[task.draw(len(order))]
    pixels, labels = images[chosen], classes[chosen]
    shift = torch.randint(-1, 2, (2,), generator=task.generator).tolist()
    pixels = torch.roll(pixels, shift, dims=(2, 3))
    noise = torch.randn(pixels.shape, generator=task.generator)
    pixels = 3 * (pixels - 0.15) + (0.3 if task.data.level >= 0.5 else 0.0) * noise
    return pixels * task.data.input_scale, task.noisy_labels(labels, 10)


def glyph_loss(task: Task, pixels: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy, of mixed images where the condition asks for them."""
    if task.data.mixup and task.chance() < task.data.mixup:
        share = 0.3 + 0.4 * task.chance()
        other = torch.randperm(len(labels), generator=task.generator)
        logits = task.module(share * pixels + (1 - share) * pixels[other])
        one = functional.cross_entropy(logits.float(), labels)
        return share * one + (1 - share) * functional.cross_entropy(logits.float(), labels[other])
    return functional.cross_entropy(task.module(pixels).float(), labels)
