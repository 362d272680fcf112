"""Chooses the steps at which the inside of the model is looked at, and takes the looks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from supervisor.codes import Found
from supervisor.errors import pass_on
from supervisor.events.state_events import StateFound
from supervisor.records import Alert
from supervisor.worker.core.budget import Pace
from supervisor.worker.core.call_state import has_compiled
from supervisor.worker.core.part import Ended, Part
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.probes.forward_sample import ForwardSample
from supervisor.worker.probes.patches_probes import sample_modules
from supervisor.worker.probes.update_sample import UpdateSample

FIGURES = (
    "update_ratio",
    "dead_layers_share",
    "layer_gradient_max",
    "activation_max",
    "activation_range",
    "dead_units_share",
    "representation_spread",
    "attention_logit_max",
    "attention_entropy",
    "loader_wait_share",
)
"""What looks find; a row of the flight recorder has room for 16 observed values, so there are few:
what the script gives then has room, too, and is read fastest there."""


COMPILED = (
    "with torch.compile forwards are not looked at: no activations, attention, dead units or "
    "latents, but what supervisor.observe gives"
)


class Probes(Part):
    """Activations, attention, the size of updates and each layer's gradient, at some of the steps.

    Two kinds of looks share the budget evenly, each at its own pace: at an update, and at a
    forward. Nothing is patched or computed at any other step, nothing of a step that is looked at
    changes, and no look fails the training: the first error ends them all, with a warning.

    Attributes:
        next_step: the next step with a look; infinite when there is none any more.
        is_on: the step under way is looked at.
    """

    name = "probes"

    def __init__(self, context: WorkerContext) -> None:
        settings = context.settings.probes
        share = 0.5 * settings.max_overhead if settings.enabled else 0.0
        every = settings.every_steps if settings.enabled else None
        self.is_on = False
        self._registry = context.registry
        self._call_state = context.call_state
        self._journal = context.journal
        self._warn = context.warn
        self._update_pace, self._forward_pace = Pace(share, every), Pace(share, every)
        self._update, self._forward = UpdateSample(), ForwardSample()
        self._is_compiled = False
        self._take_off: Callable[[], None] | None = None
        self._cost_s = 0.0
        self._waited_s = self._begun = 0.0
        self._started = time.perf_counter()
        self.next_step = 0.0
        self._choose_next()

    def start(self, step: int) -> None:
        """Called when `step` is about to begin and is not before `next_step`."""
        started = time.perf_counter()
        self.is_on = True
        self._cost_s = 0.0
        if step >= self._forward_pace.next_step:
            if has_compiled():  # patches under its feet would make it compile again
                self._is_compiled = True
                self._forward_pace.next_step = math.inf
                return
            try:
                self._forward.start(self._registry.models)
                self._take_off = sample_modules(self, self._call_state)
            except BaseException as error:
                pass_on(error)
                self._failed(error)
            self._waited_s, self._begun = 0.0, time.perf_counter()
            self._cost_s += self._begun - started

    def before_update(
        self,
        step: int,
        optimizer: Optimizer,
        parameters: Sequence[torch.Tensor],
        norm: float | None = None,
    ) -> dict[str, float]:
        """Called between backward and update of the main optimizer; returns what was seen.

        `norm` is that of the whole gradient before the script clipped it, if it is known.
        """
        found: dict[str, float] = {}
        now = time.perf_counter()
        try:
            with torch.no_grad():
                if self._take_off is not None:
                    self._end_forward()
                    found |= self._forward.take()
                    if self._waited_s:
                        found["loader_wait_share"] = self._waited_s / (now - self._begun)
                    later = time.perf_counter()
                    self._forward_pace.took(step, self._cost_s + later - now, later)
                    now = later
                self._cost_s = 0.0
                if step >= self._update_pace.next_step:
                    found |= self._update.before_update(optimizer, parameters, norm)
                    self._cost_s = time.perf_counter() - now
        except BaseException as error:
            pass_on(error)
            self._failed(error)
        return found

    def after_update(self, step: int) -> dict[str, float]:
        """Called behind the update of `step`; returns what belongs to the next record."""
        now = time.perf_counter()
        self.is_on = False
        found: dict[str, float] = {}
        try:
            self._end_forward()  # still on if the update was never judged
            if step >= self._update_pace.next_step:
                with torch.no_grad():
                    found = self._update.after_update()
                later = time.perf_counter()
                self._update_pace.took(step, self._cost_s + later - now, later)
        except BaseException as error:
            pass_on(error)
            self._failed(error)
        self._choose_next()
        return found

    def places_of(self, alert: Alert) -> list[dict[str, Any]]:
        """The tensors or modules that an alert is about, the most telling first: name, value."""
        figure = alert.metadata.get("figure")
        if figure not in FIGURES:
            return []
        places = self._forward.readings.places.get(figure) or self._named(figure)
        return [{"name": name, "value": value} for name, value in places]

    def ends(self, how: Ended) -> None:
        """Writes what the looks have cost."""
        self._end_forward()
        elapsed = time.perf_counter() - self._started
        spent = self._update_pace.spent_s + self._forward_pace.spent_s
        looks = self._update_pace.looks + self._forward_pace.looks
        unseen = f"; {COMPILED}" if self._is_compiled else ""
        if looks or unseen:
            share = spent / elapsed if elapsed > 0 else 0.0
            self._journal.write(
                StateFound(
                    found=Found.LOOKS,
                    updates=self._update_pace.looks,
                    forwards=self._forward_pace.looks,
                    cost_s=spent,
                    overhead=share,
                    compiled=self._is_compiled,
                    detail=f"{looks} looks inside the model took {share:.2%} of the time{unseen}",
                )
            )

    # --- what the patched functions tell -----------------------------------------------------

    def saw_module(self, module: nn.Module, output: Any, *, is_root: bool) -> None:
        self._look(lambda: self._forward.saw(module, output, is_root=is_root))

    def waited(self, seconds: float) -> None:
        self._waited_s += seconds

    def saw_scores(self, module: nn.Module, scores: Any) -> None:
        forward = self._forward
        where = forward.name_of(module)
        self._look(lambda: forward.attention.saw_scores(scores, forward.readings, where))

    def saw_product(self, module: nn.Module, query: Any, key: Any, given: dict[str, Any]) -> None:
        forward = self._forward
        where = forward.name_of(module)
        self._look(
            lambda: forward.attention.saw_product(query, key, forward.readings, where, given)
        )

    # --- helpers -----------------------------------------------------------------------------

    def _look(self, look: Callable[[], None]) -> None:
        if self.next_step == math.inf:
            return
        now = time.perf_counter()
        try:
            look()
        except BaseException as error:
            pass_on(error)
            self._failed(error)
        self._cost_s += time.perf_counter() - now

    def _end_forward(self) -> None:
        take_off, self._take_off = self._take_off, None
        if take_off is not None:
            take_off()

    def _choose_next(self) -> None:
        if self.next_step < math.inf:
            self.next_step = min(self._update_pace.next_step, self._forward_pace.next_step)

    def _failed(self, error: BaseException) -> None:
        self.next_step = math.inf
        self._warn(f"looks inside the model end here: {type(error).__name__}: {error}")

    def _named(self, figure: str) -> list[tuple[str, float]]:
        names = _parameter_names(self._registry.models)
        worst = [(known(), value) for known, value in self._update.largest.get(figure, [])]
        return [(names.get(id(p), "a parameter"), value) for p, value in worst if p is not None]


def _parameter_names(models: Mapping[str, nn.Module]) -> dict[int, str]:
    return {
        id(parameter): f"{model}.{name}" if len(models) > 1 else name
        for model, root in models.items()
        for name, parameter in root.named_parameters()
    }
