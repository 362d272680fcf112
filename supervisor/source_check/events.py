"""The moments of a training loop, in the order in which a file has them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from supervisor.source_check.names import dotted, last_name
from supervisor.source_check.scope import Scope
from supervisor.source_check.source import Source
from supervisor.source_check.values import origins


class Moment(Enum):
    """What a call does to a training."""

    BACKWARD = "backward"
    UNSCALE = "unscale_"
    CLIP = "clip"
    STEP = "optimizer.step"
    SCALER_STEP = "scaler.step"
    SCALER_UPDATE = "scaler.update"
    SCHEDULER_STEP = "scheduler.step"
    ZERO_GRAD = "zero_grad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One call that is a moment of the training loop."""

    moment: Moment
    call: ast.Call
    receiver: str
    """What the method was called on, as written: ``self.optimizer``; '' if it is no plain name."""
    subject: ast.expr | None
    """The loss of a backward, the parameters of a clip, the optimizer of a scaler's method."""
    scaled: bool = False
    """A backward of a scaled loss."""
    managed: bool = False
    """A backward through a framework (``accelerator.backward(loss)``) that scales by itself."""


_OPTIMIZER = re.compile(r"(^|_)(opt|opts|optim|optims|optimi[sz]ers?)[a-z]?\d*($|_)", re.IGNORECASE)
_SCHEDULER = re.compile(r"sched", re.IGNORECASE)
_SCALER = re.compile(r"scaler", re.IGNORECASE)
_CLIPS = frozenset(
    {"clip_grad_norm_", "clip_grad_norm", "clip_grad_value_", "clip_grads_with_norm_"}
)


class Training:
    """Finds the moments of training in a file."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._made: dict[str, str] = {}
        for scope in source.scopes:
            for assignment in scope.every_assignment():
                kind = self._constructed(assignment.value)
                if kind:
                    self._made[assignment.key.rsplit(".", 1)[-1]] = kind

    def _constructed(self, value: ast.expr | None) -> str:
        if not isinstance(value, ast.Call):
            return ""
        name = self.source.names.resolve(value.func)
        if name.startswith("torch.optim.lr_scheduler."):
            return "scheduler"
        if name.startswith("torch.optim.") and name.count(".") == 2:
            return "optimizer"
        return "scaler" if name.rsplit(".", 1)[-1].endswith("GradScaler") else ""

    def _is(self, expression: ast.expr, kind: str, pattern: re.Pattern[str]) -> bool:
        name = last_name(expression)
        made = self._made.get(name)
        return made == kind if made else bool(pattern.search(name))

    def is_scheduler(self, expression: ast.expr) -> bool:
        """Is this a learning-rate scheduler, by its constructor or its name?"""
        return self._is(expression, "scheduler", _SCHEDULER)

    def is_optimizer(self, expression: ast.expr) -> bool:
        """Is this an optimizer, by its constructor or its name?"""
        if self.is_scheduler(expression) or self.is_scaler(expression):
            return False
        return self._is(expression, "optimizer", _OPTIMIZER)

    def is_scaler(self, expression: ast.expr) -> bool:
        """Is this a gradient scaler, by its constructor or its name?"""
        return self._is(expression, "scaler", _SCALER)

    def has_scaler(self) -> bool:
        """Does the file make or use a gradient scaler?"""
        if "scaler" in self._made.values():
            return True
        return any(
            isinstance(node, (ast.Name, ast.Attribute)) and _SCALER.search(last_name(node))
            for node in self.source.nodes
        )

    def events(self, scope: Scope) -> list[Event]:
        """Returns the moments in ``scope`` in source order."""
        found = (self._event(call) for call in scope.all(ast.Call))
        return [event for event in found if event is not None]

    def every_event(self, *moments: Moment) -> Iterator[tuple[Scope, Event]]:
        """Yields the named moments of the whole file."""
        for scope in self.source.scopes:
            for event in self.events(scope):
                if event.moment in moments:
                    yield scope, event

    def _event(self, call: ast.Call) -> Event | None:
        name = last_name(call.func)
        if name in _CLIPS:
            return self._make(Moment.CLIP, call)
        if not isinstance(call.func, ast.Attribute):
            return None
        owner = call.func.value
        if name == "zero_grad":
            return self._make(Moment.ZERO_GRAD, call)
        if name in {"unscale_", "unscale_gradients"}:
            return self._make(Moment.UNSCALE, call)
        if name == "update" and self.is_scaler(owner):
            return self._make(Moment.SCALER_UPDATE, call)
        if name == "step":
            return self._step(call, owner)
        if name in {"backward", "manual_backward"}:
            return self._backward(call, owner)
        return None

    def _step(self, call: ast.Call, owner: ast.expr) -> Event | None:
        if self.is_scaler(owner):
            return self._make(Moment.SCALER_STEP, call) if call.args else None
        if self.is_scheduler(owner):
            return self._make(Moment.SCHEDULER_STEP, call)
        return self._make(Moment.STEP, call) if self.is_optimizer(owner) else None

    def _backward(self, call: ast.Call, owner: ast.expr) -> Event | None:
        if self.source.names.resolve(call.func).startswith("torch."):
            return None  # autograd's own functions, and the distributed one that clears by itself
        if call.args and "loss" in (ast.unparse(call.args[0]).lower()):
            return Event(
                moment=Moment.BACKWARD,
                call=call,
                receiver=dotted(owner) or "",
                subject=call.args[0],
                managed=True,
            )
        loss = next((o for o in origins(self.source, owner) if self._is_scaling(o)), None)
        subject = loss.args[0] if isinstance(loss, ast.Call) else owner
        return Event(
            moment=Moment.BACKWARD,
            call=call,
            receiver=dotted(owner) or "",
            subject=subject,
            scaled=loss is not None,
        )

    def _is_scaling(self, expression: ast.expr) -> bool:
        return (
            isinstance(expression, ast.Call)
            and isinstance(expression.func, ast.Attribute)
            and expression.func.attr == "scale"
            and self.is_scaler(expression.func.value)
            and bool(expression.args)
        )

    def _make(self, moment: Moment, call: ast.Call) -> Event:
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        return Event(
            moment=moment,
            call=call,
            receiver=(dotted(owner) or "") if owner is not None else "",
            subject=call.args[0] if call.args else None,
        )


@lru_cache(maxsize=1)
def training_of(source: Source) -> Training:
    """Returns the moments of ``source``; rules are run file by file, so one is kept."""
    return Training(source)
