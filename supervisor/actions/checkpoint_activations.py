"""Keeps fewer activations in memory, and computes them again in the backward pass."""

from __future__ import annotations

from torch import nn

from supervisor.actions.activation_checkpointing import ActivationCheckpointing
from supervisor.actions.base import Action, ActionContext
from supervisor.by_identity import ByIdentity
from supervisor.records import ActionResult


class CheckpointActivations(Action):
    """Switches on the activation checkpointing that a model itself offers; against lack of memory.

    The first remedy when memory runs out, before smaller microbatches: the training stays the same
    to the bit. Not taken back by the ladder, because the lack of memory stays.
    """

    name = "checkpoint_activations"
    moment = "boundary"
    cost = "a second forward in each backward, about a third more time a step"

    def __init__(self) -> None:
        self._on: ByIdentity[nn.Module, ActivationCheckpointing] = ByIdentity()

    def precondition(self, context: ActionContext) -> str | None:
        models = context.registry.models.values()
        if not any(ActivationCheckpointing(model).is_offered for model in models):
            return "no model offers activation checkpointing that is not on already"
        return None

    def apply(self, context: ActionContext) -> ActionResult:
        switched = []
        for name, model in context.registry.models.items():
            found = ActivationCheckpointing(model)
            if found.is_offered:
                found.switch_on()
                self._on[model] = found
                switched.append(name)
        context.controls.checkpoint_activations = True
        return self.done(
            f"activations of {', '.join(switched)} are computed again in the backward pass"
        )

    def undo(self, context: ActionContext) -> ActionResult:
        for _, found in self._on.items():
            found.switch_off()
        self._on.clear()
        context.controls.checkpoint_activations = False
        return self.done("activations are kept again")
