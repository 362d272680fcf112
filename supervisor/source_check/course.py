"""The training moments of a function: its own, and those of the functions it calls."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from supervisor.source_check.events import Event, Moment, training_of
from supervisor.source_check.scope import Function, Scope, dotted
from supervisor.source_check.source import Fact, Source, facts_of_test
from supervisor.source_check.values import (
    argument,
    callers,
    definitions,
    function_behind,
    parameters,
)

_MAX_DEPTH = 3
"""Most calls followed: epoch, batch, step; training loops are seldom deeper."""
_MAX_EVENTS = 200
"""A function with more moments is no training loop."""
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


def course_of(source: Source, scope: Scope, depth: int = _MAX_DEPTH) -> list[Event]:
    """Returns the moments that a call of this function leads to, in order."""
    key = (course_of, depth), scope.node
    if key not in source.kept:
        source.kept[key] = []  # a function that calls itself adds nothing to its own course
        found = [event for call in scope.all(ast.Call) for event in _at(source, call, depth)]
        source.kept[key] = sorted(found, key=lambda event: event.place)[:_MAX_EVENTS]
    events: list[Event] = source.kept[key]
    return events


def calling(source: Source, scope: Scope, depth: int = 2) -> Iterator[Scope]:
    """Yields the scopes that call ``scope``, directly or not."""
    if depth and not isinstance(scope.node, ast.Module):
        for call in callers(source, scope.node):
            around = source.scope_of(call)
            yield around
            yield from calling(source, around, depth - 1)


def is_of_training(source: Source, node: ast.AST) -> bool:
    """Is there a backward in the function of ``node``, or in one that calls it?"""
    scope = source.scope_of(node)
    return any(
        event.moment is Moment.BACKWARD
        for each in (scope, *calling(source, scope))
        for event in training_of(source).events(each)
    )


def _at(source: Source, call: ast.Call, depth: int) -> list[Event]:
    """A call known by its name counts as that moment, unless the function it runs has it, too."""
    own = training_of(source).event(call)
    function = function_behind(source, call) if depth else None
    inner: list[Event] = []
    if function is not None:
        lifted = _Lift(source, call, function)
        events = course_of(source, source.scope_for(function), depth - 1)
        inner = [seen for event in events if (seen := lifted.event(event)) is not None]
    if own is not None and all(event.moment is not own.moment for event in inner):
        inner.append(own)
    return inner


class _Lift:
    """Translates a function's moments to the place where it is called."""

    def __init__(self, source: Source, call: ast.Call, function: Function) -> None:
        self.source = source
        self.call = call
        self.function = function
        self.parameters = parameters(function)
        self.facts = source.facts(call)
        self.loops = tuple(source.loops(call))

    def event(self, event: Event) -> Event | None:
        """Returns the event as the caller sees it; None where these arguments rule it out."""
        facts = set(self.facts)
        for text, held in event.facts:
            known = self._fact(text, held)
            if known is None:
                return None
            facts |= known
        subject = self._subject(event.subject)
        scaled = event.scaled
        if subject is not None and subject is not event.subject and event.is_of_its_subject:
            scaled = training_of(self.source).scaled_by(subject) is not None
        return replace(
            event,
            path=(self.call, *event.path),
            facts=frozenset(facts),
            loops=(*event.loops, *self.loops),
            receiver=self._receiver(event.receiver),
            subject=subject,
            scaled=scaled,
        )

    def _given(self, parameter: str) -> ast.expr | None:
        if parameter == "self" and isinstance(self.call.func, ast.Attribute):
            return self.call.func.value
        return argument(self.source, self.call, self.function, parameter)

    def _fact(self, text: str, held: bool) -> set[Fact] | None:
        """A condition of the function in terms of the caller; None if it is ruled out."""
        if text in self.parameters:
            given = self._given(text)
            if isinstance(given, ast.Constant):
                return set() if bool(given.value) == held else None
            return set() if given is None else facts_of_test(given, held=held)
        return {(self._translated(text), held)}

    def _translated(self, text: str) -> str:
        """The condition in the caller's names; names local to the function are marked."""
        own = set(self.parameters)
        scope = self.source.scope_for(self.function)

        def word(match: re.Match[str]) -> str:
            name = match[0]
            given = self._given(name) if name in own else None
            if given is not None:
                return ast.unparse(given)
            is_local = name in own or bool(scope.assignments(name))
            return f"{name}_of_line_{self.function.lineno}" if is_local else name

        return _WORD.sub(word, text)

    def _receiver(self, receiver: str) -> str:
        root, dot, rest = receiver.partition(".")
        if root not in self.parameters:
            return receiver
        given = self._given(root)
        owner = dotted(given) if given is not None else None
        return f"{owner}{dot}{rest}" if owner else ""

    def _subject(self, subject: ast.expr | None) -> ast.expr | None:
        if not isinstance(subject, ast.Name) or definitions(self.source, subject):
            return subject
        return (subject.id in self.parameters and self._given(subject.id)) or subject
