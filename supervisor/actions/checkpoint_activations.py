"""Keeps fewer activations in memory, and computes them again in the backward pass.

Where a model offers to compute its activations again in the backward pass: on and off.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from supervisor.actions.base import Action, ActionContext
from supervisor.by_identity import ByIdentity
from supervisor.errors import pass_on
from supervisor.records import ActionResult

METHODS = (
    ("gradient_checkpointing_enable", "gradient_checkpointing_disable"),  # Hugging Face
    ("enable_gradient_checkpointing", "disable_gradient_checkpointing"),  # its diffusion models
    ("set_grad_checkpointing", ""),  # timm, open_clip; takes True or False
)
FLAGS = ("use_checkpoint", "grad_checkpointing", "use_gradient_checkpointing")
"""Attributes of single modules by which published vision models (Swin, diffusion U-Nets) switch."""
IS_ON = ("is_gradient_checkpointing", "grad_checkpointing")


class ActivationCheckpointing:
    """What one model offers; the outermost module that offers it counts, and flags after methods.

    Some (Sentence Transformers') can only be switched on: `switch_off` leaves them on.
    A model with batch normalisation offers nothing: its running figures would take in every batch
    twice. The forward computes the same to the bit, random numbers included, because
    `torch.utils.checkpoint` keeps them by default.
    """

    def __init__(self, model: nn.Module) -> None:
        self._switches: list[_Switch] = []
        try:
            if not any(isinstance(module, _BatchNorm) for module in nn.Module.modules(model)):
                self._switches = list(_methods(model)) or list(_flags(model))
        except BaseException as error:  # a property of the model's: then it offers nothing
            pass_on(error)

    @property
    def is_offered(self) -> bool:
        """Whether it can be switched on, and is not on yet."""
        return any(not call_state.is_on for call_state in self._switches)

    def switch_on(self) -> None:
        """Raises whatever the model's own method raises."""
        for call_state in self._switches:
            call_state.on()

    def switch_off(self) -> None:
        """Raises whatever the model's own method raises."""
        for call_state in self._switches:
            call_state.off()


@dataclass(frozen=True, slots=True)
class _Switch:
    on: Callable[[], Any]
    off: Callable[[], Any]
    is_on: bool


def _methods(model: nn.Module) -> Iterator[_Switch]:
    covered: set[int] = set()
    for module in nn.Module.modules(model):
        if id(module) in covered:
            continue
        for enable, disable in METHODS:
            if not callable(getattr(type(module), enable, None)):
                continue  # not of the module itself: a mock answers to any name
            on = getattr(module, enable)
            if not getattr(module, "supports_gradient_checkpointing", True):
                continue
            covered.update(id(inner) for inner in nn.Module.modules(module))
            off = getattr(module, disable, _stays_on) if disable else functools.partial(on, False)
            is_on = any(getattr(module, name, False) is True for name in IS_ON)
            yield _Switch(_without_reentry(on), off, is_on)
            break


def _stays_on() -> None:
    """Where a model cannot switch it off: it computes the same."""


def _without_reentry(enable: Callable[..., Any]) -> Callable[[], Any]:
    """The older, reentrant way gives no gradients where a segment's inputs need none."""
    with contextlib.suppress(TypeError, ValueError):
        if "gradient_checkpointing_kwargs" in inspect.signature(enable).parameters:
            return functools.partial(enable, gradient_checkpointing_kwargs={"use_reentrant": False})
    return enable


def _flags(model: nn.Module) -> Iterator[_Switch]:
    for module in nn.Module.modules(model):
        for name in FLAGS:
            if type(vars(module).get(name)) is bool:
                yield _Switch(
                    functools.partial(setattr, module, name, True),
                    functools.partial(setattr, module, name, False),
                    vars(module)[name],
                )


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
