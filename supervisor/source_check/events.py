"""The moments of a training loop, in the order in which they happen."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from supervisor.source_check.scope import Scope, dotted, last_name
from supervisor.source_check.source import Fact, Source, contradicts
from supervisor.source_check.values import definitions, full_name, is_false, origins

Place = tuple[tuple[int, int], ...]


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
    EVAL = "model.eval"
    TRAIN = "model.train"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One call that is a moment of the training loop, as seen from one function.

    A moment inside a called function is placed at the call.
    """

    moment: Moment
    call: ast.Call
    path: tuple[ast.Call, ...]
    """The calls that lead to it from the function it is seen from; the last is ``call``."""
    facts: frozenset[Fact]
    """The conditions that hold whenever it happens."""
    loops: tuple[ast.AST, ...]
    """The loops around it, innermost first."""
    receiver: str
    """What the method was called on, as written: ``self.optimizer``; '' if it is no name."""
    subject: ast.expr | None
    """The loss of a backward, the parameters of a clip, the optimizer of a scaler's method."""
    scaled: bool = False
    """A backward of a scaled loss."""
    managed: bool = False
    """A backward through a framework (``accelerator.backward(loss)``) that scales by itself."""

    @property
    def place(self) -> Place:
        """Its place in time: a call happens after its arguments, so its end counts."""
        return tuple((call.end_lineno or 0, call.end_col_offset or 0) for call in self.path)

    def can_meet(self, other: Event) -> bool:
        """Can both happen in one pass, or do their conditions exclude it?"""
        return not contradicts(self.facts, other.facts)

    @property
    def is_of_its_subject(self) -> bool:
        """Is this ``loss.backward()``, and not ``scaler.scale(loss).backward()``?"""
        return isinstance(self.call.func, ast.Attribute) and self.call.func.value is self.subject

    def precedes(self, other: Event) -> bool:
        """Can this happen before ``other`` in one pass?"""
        return self.place < other.place and self.can_meet(other)

    def apart_from(self, other: Event) -> ast.Call:
        """Returns the call that leads to this event but not to the other: the one out of order."""
        for own, its in zip(self.path, other.path, strict=False):
            if own is not its:
                return own
        return self.call


_KINDS = (
    ("scaler", re.compile(r"scaler", re.IGNORECASE)),
    ("scheduler", re.compile(r"sched", re.IGNORECASE)),
    (
        "optimizer",
        re.compile(r"(^|_)(opt|opts|optim|optims|optimi[sz]ers?)[a-z]?\d*($|_)", re.IGNORECASE),
    ),
)
_CLIPS = frozenset(
    {
        "clip_grad_norm_",
        "clip_grad_norm",
        "clip_grad_value_",
        "clip_grads_with_norm_",
        "clip_gradients",
    }
)
_BY_NAME = {
    **dict.fromkeys(_CLIPS, Moment.CLIP),
    "zero_grad": Moment.ZERO_GRAD,
    "unscale_": Moment.UNSCALE,
    "unscale_gradients": Moment.UNSCALE,
}


class Training:
    """Finds the moments of training in a file."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._made: dict[str, str] = {}
        self._events: dict[Scope, list[Event]] = {}
        for scope in source.scopes:
            for assignment in scope.every_assignment():
                kind = self._constructed(assignment.value)
                if kind:
                    self._made[assignment.key.rsplit(".", 1)[-1]] = kind

    def _constructed(self, value: ast.expr | None) -> str:
        if not isinstance(value, ast.Call):
            return ""
        name = full_name(self.source, value.func)
        if name.startswith("torch.optim.lr_scheduler."):
            return "scheduler"
        if name.startswith("torch.optim.") and name.count(".") == 2:
            return "optimizer"
        return "scaler" if name.rsplit(".", 1)[-1].endswith("GradScaler") else ""

    def kind_of(self, expression: ast.expr) -> str:
        """Optimizer, scheduler or scaler, by its constructor or by one of its names; else ''."""
        for origin in origins(self.source, expression):
            name = last_name(origin)
            made = self._constructed(origin) or self._made.get(name)
            if made:
                return made
            if isinstance(origin, (ast.Name, ast.Attribute, ast.Subscript, ast.Call)):
                for kind, pattern in _KINDS:
                    if pattern.search(name):
                        return kind
        return ""

    def has_scaler(self) -> bool:
        """Does the file make or use a gradient scaler?"""
        if "scaler" in self._made.values():
            return True
        return any(
            isinstance(node, (ast.Name, ast.Attribute)) and "scaler" in last_name(node).lower()
            for node in self.source.nodes
        )

    def events(self, scope: Scope) -> list[Event]:
        """Returns the moments that ``scope`` itself holds, in source order."""
        if scope not in self._events:
            found = (self.event(call) for call in scope.all(ast.Call))
            self._events[scope] = [event for event in found if event is not None]
        return self._events[scope]

    def every_event(self, *hooks: Moment) -> Iterator[tuple[Scope, Event]]:
        """Yields the named moments of the whole file."""
        for scope in self.source.scopes:
            for event in self.events(scope):
                if event.moment in hooks:
                    yield scope, event

    def event(self, call: ast.Call) -> Event | None:
        """Returns the moment that ``call`` is by its name and what it is called on."""
        name = full_name(self.source, call.func).rsplit(".", 1)[-1] or last_name(call.func)
        if name in _CLIPS:
            return self._make(Moment.CLIP, call)
        if not isinstance(call.func, ast.Attribute):
            return None
        owner = call.func.value
        if name in _BY_NAME:
            return self._make(_BY_NAME[name], call)
        if name == "eval" and not call.args:
            return self._make(Moment.EVAL, call)
        if name == "train" and not any(is_false(each) for each in call.args):
            return self._make(Moment.TRAIN, call)
        if name == "update" and self.kind_of(owner) == "scaler":
            return self._make(Moment.SCALER_UPDATE, call)
        if name == "step":
            return self._step(call, owner)
        if name in {"backward", "manual_backward"}:
            return self._backward(call, owner)
        return None

    def _step(self, call: ast.Call, owner: ast.expr) -> Event | None:
        kind = self.kind_of(owner)
        if kind == "scaler":
            return self._make(Moment.SCALER_STEP, call) if call.args else None
        if kind == "scheduler":
            return self._make(Moment.SCHEDULER_STEP, call)
        return self._make(Moment.STEP, call) if kind == "optimizer" else None

    def _backward(self, call: ast.Call, owner: ast.expr) -> Event | None:
        if self.source.names.resolve(call.func).startswith("torch."):
            return None  # autograd's own functions, and the distributed one that clears by itself
        if call.args and "loss" in (ast.unparse(call.args[0]).lower()):
            return self._make(Moment.BACKWARD, call, call.args[0], managed=True)
        loss = self.scaled_by(owner)
        return self._make(Moment.BACKWARD, call, loss or owner, scaled=loss is not None)

    def scaled_by(self, loss: ast.expr) -> ast.expr | None:
        """Returns the loss in ``scaler.scale(loss)``, or None for a loss that is not scaled."""
        for origin in origins(self.source, loss):
            if isinstance(origin, ast.Call) and origin.args:
                function = origin.func
                is_scale = isinstance(function, ast.Attribute) and function.attr == "scale"
                if isinstance(function, ast.Attribute) and is_scale:
                    is_scaler = self.kind_of(function.value) == "scaler"
                    return origin.args[0] if is_scaler else None
        return None

    def _make(
        self,
        moment: Moment,
        call: ast.Call,
        subject: ast.expr | None = None,
        *,
        scaled: bool = False,
        managed: bool = False,
    ) -> Event:
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        return Event(
            moment=moment,
            call=call,
            path=(call,),
            facts=self.source.facts(call),
            loops=tuple(self.source.loops(call)),
            receiver=self._written(owner),
            subject=subject or (call.args[0] if call.args else None),
            scaled=scaled,
            managed=managed,
        )

    def _written(self, owner: ast.expr | None) -> str:
        """The name of an object: ``self.d_opt`` after ``optimizer = self.d_opt``."""
        made = definitions(self.source, owner) if owner is not None else []
        if len(made) == 1 and made[0].value is not None and dotted(made[0].value):
            return dotted(made[0].value) or ""
        return (dotted(owner) or "") if owner is not None else ""


@lru_cache(maxsize=1)
def training_of(source: Source) -> Training:
    """Returns the moments of ``source``; rules are run file by file, so one is kept."""
    return Training(source)
