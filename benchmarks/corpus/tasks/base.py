"""What a task is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass
class Data:
    """How a task's data is drawn; conditions change it while the training runs.

    Attributes:
        batch: samples of a batch.
        level: 0 easy data, 1 all of it; a curriculum goes from one to the other.
        label_noise: share of targets drawn at random.
        input_scale: factor on inputs, 1 unless something is broken.
        mixup: share of batches made of mixed samples.
        distinct: samples in all; 0 is everything there is.
        kl_weight, entropy_bonus: terms of the VAE's and the policy's loss.
    """

    batch: int = 16
    level: float = 1.0
    label_noise: float = 0.0
    input_scale: float = 1.0
    mixup: float = 0.0
    distinct: int = 0
    kl_weight: float = 1.0
    entropy_bonus: float = 0.01


class Task(ABC):
    """A model with its data.

    Attributes:
        module: what the main optimizer trains.
        data: see `Data`.
        observed: what a user of such a model would observe, of the last step.
        outcome: of the last step, what tells whether the training goes well (lower is better);
            NaN stands for the loss itself.
        has_rival: `second_half` trains another model with an optimizer of its own.
    """

    module: nn.Module
    has_rival = False

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator
        self.data = Data()
        self.observed: dict[str, float] = {}
        self.outcome = float("nan")

    @abstractmethod
    def loss(self) -> Tensor:
        """Draws a batch and returns its loss, a scalar."""

    def second_half(self) -> float:
        """What follows the main optimizer's update; returns the losses that it sent backward."""
        return 0.0

    def draw(self, high: int, count: int | None = None) -> Tensor:
        """Numbers of random samples below `high`."""
        top = min(high, self.data.distinct) if self.data.distinct else high
        return torch.randint(top, (count or self.data.batch,), generator=self.generator)

    def chance(self) -> float:
        return float(torch.rand((), generator=self.generator))

    def noisy_labels(self, labels: Tensor, classes: int) -> Tensor:
        """`labels` with a share of `data.label_noise` replaced by random ones."""
        if not self.data.label_noise:
            return labels
        other = torch.randint(classes, labels.shape, generator=self.generator)
        hit = torch.rand(labels.shape, generator=self.generator) < self.data.label_noise
        return torch.where(hit, other, labels)
