"""The few numbers by which actions steer each update, and what keeps one from the weights."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch

ADAPTIVE_WINDOW = 1000
ADAPTIVE_PERCENTILE = 99.5
ADAPTIVE_LIMITS = (1.0, 100.0)
ADAPTIVE_WARM_UP = 100
ADAPTIVE_FIXED = 10.0
"""Threshold until 100 norms were seen: the geometric middle of the limits."""


@dataclass(slots=True)
class Ramp:
    """A straight way of the learning-rate factor from `start` to `end` over `steps` steps."""

    start: float
    end: float
    steps: int
    done: int = 0

    def advance(self) -> float:
        """Goes one step on and returns the factor there."""
        self.done += 1
        if self.done >= self.steps:
            return self.end
        return self.start + (self.end - self.start) * self.done / self.steps

    @property
    def is_over(self) -> bool:
        return self.done >= self.steps


@dataclass(slots=True)
class AdaptiveThreshold:
    """Clipping threshold from the norms seen: their 99.5th percentile, between 1 and 100.

    The window is the last 1,000 finite norms; for the first 100 the threshold is fixed.
    """

    norms: deque[float] = field(default_factory=lambda: deque(maxlen=ADAPTIVE_WINDOW))

    def update(self, norm: float) -> None:
        if math.isfinite(norm):
            self.norms.append(norm)

    @property
    def value(self) -> float:
        if len(self.norms) < ADAPTIVE_WARM_UP:
            return ADAPTIVE_FIXED
        low, high = ADAPTIVE_LIMITS
        return float(np.clip(np.percentile(self.norms, ADAPTIVE_PERCENTILE), low, high))


@dataclass(slots=True)
class Controls:
    """Owned by the worker, changed by actions, neutral as constructed.

    Neutral controls change nothing, to the bit.

    Attributes:
        is_neutral: all of the others are as constructed; asked at every step, so kept up to date
            with every change instead of found out each time.
        lr_factor: by which the learning rate of each group is multiplied for the update alone.
        lr_share: the same, for the rest of the run.
        lr_limit: no rate of the main optimizer above it; None = no limit.
        clip_factor: by which the script's own clipping threshold is multiplied.
        clip_norm: threshold for a script that does not clip; None = do not clip.
        adaptive: when set, a threshold of its own that follows the norms.
        fp32: autocast regions are disabled; a GradScaler goes on scaling, in FP32.
        batch_factor: by which `supervisor.batch_size` multiplies.
        checkpoint_activations: models compute their activations again in the backward pass.
        ramp: the way back of `lr_factor` after an undo.
    """

    is_neutral: bool = field(default=True, init=False, compare=False)
    lr_factor: float = 1.0
    lr_share: float = 1.0
    lr_limit: float | None = None
    clip_factor: float = 1.0
    clip_norm: float | None = None
    adaptive: AdaptiveThreshold | None = None
    fp32: bool = False
    batch_factor: float = 1.0
    checkpoint_activations: bool = False
    ramp: Ramp | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name != "is_neutral":
            object.__setattr__(self, "is_neutral", self._is_neutral())

    def advance(self, grad_norm: float = math.nan) -> None:
        """Call once after each step: moves the ramp on, and feeds the adaptive threshold."""
        if self.ramp is not None:
            self.lr_factor = self.ramp.advance()
            if self.ramp.is_over:
                self.ramp = None
        if self.adaptive is not None:
            self.adaptive.update(grad_norm)

    def max_norm(self, scripts: float | None) -> float | None:
        """Returns the clipping threshold for this update, None for no clipping.

        Args:
            scripts: the script's own ``max_norm``, None when it does not clip.
        """
        limits = [] if scripts is None else [scripts * self.clip_factor]
        if self.clip_norm is not None:
            limits.append(self.clip_norm)
        if self.adaptive is not None:
            limits.append(self.adaptive.value)
        return min(limits) if limits else None

    def rate_factor(self, main_rate: float) -> float:
        """Returns by what the rates of this update are multiplied.

        Args:
            main_rate: of the first group of the main optimizer, as the script has it.
        """
        factor = self.lr_factor * self.lr_share
        if self.lr_limit is not None and main_rate > self.lr_limit:
            factor *= self.lr_limit / main_rate
        return factor

    def _is_neutral(self) -> bool:
        # Of one that is being constructed, what comes last is not there yet.
        return all(getattr(self, name, value) == value for name, value in _NEUTRAL.items())

    def state_dict(self) -> dict[str, Any]:
        """Plain values, for the checkpoint."""
        return {
            "lr_factor": self.lr_factor,
            "lr_share": self.lr_share,
            "lr_limit": self.lr_limit,
            "clip_factor": self.clip_factor,
            "clip_norm": self.clip_norm,
            "adaptive": None if self.adaptive is None else list(self.adaptive.norms),
            "fp32": self.fp32,
            "batch_factor": self.batch_factor,
            "checkpoint_activations": self.checkpoint_activations,
            "ramp": None
            if self.ramp is None
            else [self.ramp.start, self.ramp.end, self.ramp.steps, self.ramp.done],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name in ("lr_factor", "clip_factor", "clip_norm", "fp32", "batch_factor"):
            setattr(self, name, state[name])
        self.checkpoint_activations = state.get("checkpoint_activations", False)
        self.lr_share, self.lr_limit = state.get("lr_share", 1.0), state.get("lr_limit")
        norms, ramp = state["adaptive"], state["ramp"]
        self.adaptive = None
        if norms is not None:
            self.adaptive = AdaptiveThreshold(deque(norms, maxlen=ADAPTIVE_WINDOW))
        self.ramp = None if ramp is None else Ramp(*ramp)


_NEUTRAL = {f.name: f.default for f in fields(Controls) if f.init}


def hide_gradients(
    optimizer: torch.optim.Optimizer,
    are_zero: Callable[[torch.Tensor], bool] = lambda gradient: False,
) -> Callable[[], None]:
    """Takes the gradients away before ``step``; returns what gives them back, zeroed, after it.

    With ``grad`` None every optimizer of torch leaves the parameter, its state and its weight
    decay alone. Multiplying by zero would not do: 0 x NaN is NaN. The same tensors come back,
    zeroed, for code that reads ``p.grad`` after the step. Under a closure it is called when the
    closure has made them, and again for each further evaluation.

    Args:
        are_zero: of which gradients it is known; they are given back as they are.
    """
    hidden = [
        (parameter, parameter.grad)
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]
    for parameter, _ in hidden:
        parameter.grad = None

    def give_back() -> None:
        for parameter, gradient in hidden:
            if not are_zero(gradient):
                with torch.no_grad():
                    gradient.zero_()
            parameter.grad = gradient

    return give_back
