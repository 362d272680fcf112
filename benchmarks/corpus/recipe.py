"""One training of the corpus, described by names and numbers."""

from __future__ import annotations

from dataclasses import dataclass

SPLIT_OF_ARCHITECTURE = {
    "mlp": "train",
    "transformer": "train",
    "vae": "train",
    "policy": "train",
    "pair": "train",
    "cnn": "validation",
    "lstm": "test",
    "gan": "test",
    "reward": "test",
}

SPLIT_OF_CONDITION = {
    "bad_initialisation": "validation",
    "data_corruption": "validation",
    "lr_drop": "validation",
    "stale_second_moment": "test",
    "accumulation_bug": "test",
    "momentum_too_high": "test",
    "mixup": "test",
    "warm_restarts": "test",
}
"""Conditions that are seen in one split only, whatever the architecture; others go with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is trained and what is special about it.

    Attributes:
        architecture: key of `tasks.TASKS`.
        condition: key of `conditions.CONDITIONS`, the reason why the run is easy, hard or sick.
        sick: whether the condition is meant to make it fail; the label comes from the outcome.
        optimizer: key of `optimizers.OPTIMIZERS`.
        lr: learning rate; NaN-free and before any schedule.
        precision: ``fp32``, ``bf16`` (autocast) or ``fp16`` (autocast with a GradScaler).
        severity: how strong the condition is, in its own unit.
        clip: gradient norm to which gradients are clipped; 0 does not clip.
        steps: updates.
        seed: of weights and data.
    """

    architecture: str
    condition: str
    sick: bool
    optimizer: str
    lr: float
    precision: str = "fp32"
    severity: float = 1.0
    clip: float = 0.0
    steps: int = 400
    seed: int = 0

    @property
    def name(self) -> str:
        parts = (self.architecture, self.condition, self.optimizer, self.precision)
        return "-".join((*parts, f"{self.severity:g}", f"{self.lr:g}", str(self.seed)))

    @property
    def split(self) -> str:
        """The condition's own split, else the architecture's; a test architecture stays there."""
        by_architecture = SPLIT_OF_ARCHITECTURE[self.architecture]
        if by_architecture == "test":
            return "test"
        return SPLIT_OF_CONDITION.get(self.condition, by_architecture)
