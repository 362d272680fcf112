"""What `supervisor explain` and `analyze` change about a replay (`WorkerOrder.experiment`)."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import torch

from supervisor.worker.core.part import ALWAYS, Arrived, Ended, Part
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.inspection.inspection import Inspection
from supervisor.worker.inspection.patches_experiment import (
    hand_out_in_other_order,
    keep_the_last_batch,
    keep_writes_apart,
)

OVERSIZED = 3.0
"""A matrix whose entries are so large on average: embeddings begin at 1, all others below."""


class Experiment(Part):
    """Changes one thing about a replay; every wish is optional; ``replay`` is always there.

    ``lr_factor``, ``clip_norm``, ``fp32``, ``reshuffle`` (a seed for the order of batches) and
    ``seed`` (of all generators) hold from the first boundary on; ``seed_at`` puts the seeding off
    to the boundary of a step, ``lr_from`` the factor. ``fresh_optimizer_at`` and
    ``old_weights_at`` list boundaries at which the optimizers forget everything, or the weights of
    the first boundary come back. ``usual_weights`` brings matrices that are far too large at the
    first boundary back to the usual scale; ``repeat_batch_from`` hands out the batch of before in
    place of every other from a boundary on.
    ``inspect`` lists steps that are looked at closely; ``captures`` maps such a step to the folders
    of its captured batches, by rank; both are text.

    Args:
        use_fp32: switches the FP32 fallback on.
    """

    name = "experiment"

    def __init__(self, context: WorkerContext, use_fp32: Callable[[int], None]) -> None:
        keep_writes_apart(context.rundir.root)
        progress = context.progress
        self._wishes = context.order.experiment
        self._rank = str(context.rank)
        self._registry = context.registry
        self._controls = context.controls
        self._use_fp32 = use_fp32
        self._inspection = Inspection(
            context.rundir.inspections(context.rank), context.registry, lambda: progress.last_batch
        )
        self._began = False
        self._repeat_batch: Callable[[], None] = lambda: None
        self._weights: list[tuple[torch.Tensor, torch.Tensor]] = []

    def at_boundary(self, step: int) -> None:
        wishes = self._wishes
        self._inspection.stop()
        if not self._began:
            self._began = True
            self._begin(step)
        if step in wishes.get("old_weights_at", ()):
            with torch.no_grad():
                for parameter, value in self._weights:
                    parameter.copy_(value)
        if step in wishes.get("fresh_optimizer_at", ()):
            for optimizer in self._registry.optimizers.values():
                optimizer.state.clear()
        if step == wishes.get("repeat_batch_from"):
            self._repeat_batch()
        if "lr_factor" in wishes and step == wishes.get("lr_from"):
            self._lower_rate()
        if "seed" in wishes and step == wishes.get("seed_at"):
            _seed(int(wishes["seed"]))
        if step in wishes.get("inspect", ()):
            self._inspection.start(
                step, wishes.get("captures", {}).get(str(step), {}).get(self._rank)
            )

    def next_boundary(self, step: int) -> tuple[float, float]:
        return ALWAYS

    def goes_live(self, arrived: Arrived) -> None:
        self.at_boundary(arrived.step)

    def ends(self, how: Ended) -> None:
        """A step that broke off is written down, too."""
        self._inspection.stop()

    def _lower_rate(self) -> None:
        self._controls.lr_factor *= float(self._wishes["lr_factor"])
        self._controls.ramp = None

    def _begin(self, step: int) -> None:
        wishes, controls = self._wishes, self._controls
        if "lr_factor" in wishes and "lr_from" not in wishes:
            self._lower_rate()
        if "clip_norm" in wishes:
            controls.clip_norm = float(wishes["clip_norm"])
        if wishes.get("fp32"):
            self._use_fp32(step)
        if "seed" in wishes and "seed_at" not in wishes:
            _seed(int(wishes["seed"]))
        if "reshuffle" in wishes:
            hand_out_in_other_order()
        if "repeat_batch_from" in wishes:
            self._repeat_batch = keep_the_last_batch()
        if wishes.get("usual_weights"):
            for model in self._registry.models.values():
                _bring_to_usual_scale(model)
        if wishes.get("old_weights_at"):
            self._weights = [
                (parameter, parameter.detach().clone())
                for model in self._registry.models.values()
                for parameter in model.parameters()
            ]


def _bring_to_usual_scale(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for matrix in (parameter for parameter in model.parameters() if parameter.dim() >= 2):
            size = float(matrix.double().square().mean().sqrt())
            if size > OVERSIZED:  # the usual scale keeps the variance from layer to layer
                matrix.mul_(matrix[0].numel() ** -0.5 / size)


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
