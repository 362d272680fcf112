"""Calls of the training step in the wrong order."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from supervisor.source_check.course import course_of
from supervisor.source_check.events import Event, Moment
from supervisor.source_check.scope import Scope, dotted, last_name
from supervisor.source_check.source import Rule, Source

_PROGRESS = re.compile(r"epoch|step|iter|\b(i|idx)\b", re.IGNORECASE)
"""In a condition: after the first pass, ``if epoch > 0``, the schedule may come first."""
_STEPS = (Moment.STEP, Moment.SCALER_STEP)


def _passes(source: Source) -> Iterator[list[Event]]:
    """Yields the events of each stretch of code that runs once a step: a loop, a function."""
    for scope in source.scopes:
        bodies: dict[ast.AST, list[Event]] = {}
        for event in course_of(source, scope):
            bodies.setdefault(event.loops[0] if event.loops else scope.node, []).append(event)
        yield from bodies.values()


def _with(events: list[Event], pivot: Event) -> tuple[list[Event], list[Event]]:
    """Splits the events that can run in one pass with ``pivot``: before it, after it."""
    others = [event for event in events if event is not pivot and event.can_meet(pivot)]
    before = [event for event in others if event.place < pivot.place]
    return before, [event for event in others if event.place > pivot.place]


def _hooks(events: list[Event], *hooks: Moment) -> list[Event]:
    return [event for event in events if event.moment in hooks]


def _clips_after_step(source: Source) -> Iterator[ast.AST]:
    for events in _passes(source):
        for clip in _hooks(events, Moment.CLIP):
            before, after = _with(events, clip)
            relevant = _hooks(before, Moment.BACKWARD, *_STEPS, Moment.CLIP)
            if len(relevant) < 2 or relevant[-1].moment not in _STEPS:
                continue
            has_backward = bool(_hooks(relevant, Moment.BACKWARD))
            following = _hooks(after, Moment.BACKWARD, *_STEPS, Moment.ZERO_GRAD)
            is_last = not following or following[0].moment is Moment.ZERO_GRAD
            if has_backward and is_last and not _hooks(relevant, Moment.CLIP):
                yield clip.apart_from(relevant[-1])


def _clips_before_backward(source: Source) -> Iterator[ast.AST]:
    for events in _passes(source):
        for clip in _hooks(events, Moment.CLIP):
            before, after = _with(events, clip)
            if _hooks(before, Moment.BACKWARD, *_STEPS):
                continue
            rest = _hooks(after, Moment.BACKWARD, *_STEPS, Moment.CLIP)
            kinds = [event.moment for event in rest]
            if Moment.CLIP in kinds or not kinds or kinds[0] is not Moment.BACKWARD:
                continue
            if any(moment in kinds for moment in _STEPS):
                yield clip.apart_from(rest[0])


def _zeroes_before_step(source: Source) -> Iterator[ast.AST]:
    for events in _passes(source):
        for zero in _hooks(events, Moment.ZERO_GRAD):
            before, after = _with(events, zero)
            earlier = _hooks(before, Moment.BACKWARD, *_STEPS)
            later = _hooks(after, Moment.BACKWARD, *_STEPS)
            if not earlier or not later or earlier[-1].moment is not Moment.BACKWARD:
                continue
            steps_next = later[0].moment in _STEPS and _optimizer_of(later[0]) == zero.receiver
            if steps_next and zero.receiver and earlier[-1].can_meet(later[0]):
                yield zero.apart_from(later[0])


def _optimizer_of(step: Event) -> str:
    if step.moment is Moment.SCALER_STEP and step.subject is not None:
        return dotted(step.subject) or ""
    return step.receiver


def _never_zeroes(source: Source) -> Iterator[ast.AST]:
    for scope in source.scopes:
        events = course_of(source, scope)
        for step in _hooks(events, *_STEPS):
            backward = [
                event
                for event in _hooks(events, Moment.BACKWARD)
                if set(step.loops) & set(event.loops) and event.can_meet(step)
            ]
            if backward and not _clears_gradients(source, scope):
                yield step.apart_from(backward[0])
                break


def _clears_gradients(source: Source, scope: Scope, depth: int = 3) -> bool:
    """Does the scope, what is nested in it, or what it calls in this file clear gradients?"""
    called: set[str] = set()
    for node in ast.walk(scope.node):
        if isinstance(node, ast.Call):
            called.add(last_name(node.func))
        if isinstance(node, ast.Assign):
            for target in node.targets:
                parts = target.elts if isinstance(target, ast.Tuple) else [target]
                called |= {f".{last_name(part)}" for part in parts}
    if "zero_grad" in called or ".grad" in called or any("zero" in name for name in called):
        return True
    if depth == 0:
        return False
    functions = [function for name in called for function in source.functions_named(name)]
    return any(
        _clears_gradients(source, source.scope_for(function), depth - 1) for function in functions
    )


def _schedules_first(source: Source) -> Iterator[ast.AST]:
    if any(last_name(node) == "last_epoch" for node in source.nodes):
        return  # the schedule is set by hand to where it is to begin
    for scope in source.scopes:
        events = course_of(source, scope)
        for schedule in _hooks(events, Moment.SCHEDULER_STEP):
            if not schedule.loops or schedule.call.args or schedule.call.keywords:
                continue
            before, after = _with(events, schedule)
            inside = [event for event in before if schedule.loops[0] in event.loops]
            following = _hooks(after, *_STEPS)
            following = [event for event in following if schedule.loops[0] in event.loops]
            if not following:
                continue
            waits = any(_PROGRESS.search(text) for text, _ in schedule.facts - following[0].facts)
            if not waits and not _hooks(inside, *_STEPS):
                yield schedule.apart_from(following[0])


RULES = (
    Rule(
        name="clip-before-backward",
        risk="high",
        message=(
            "Gradients are clipped before backward() has computed them, and not again before the "
            "step: nothing is clipped."
        ),
        fix="Clip between backward() and step().",
        find=_clips_before_backward,
    ),
    Rule(
        name="clip-after-step",
        risk="high",
        message="Gradients are clipped after the step has used them: nothing is clipped.",
        fix="Clip between backward() and step().",
        find=_clips_after_step,
    ),
    Rule(
        name="zero-grad-before-step",
        risk="high",
        message=(
            "Gradients are cleared between backward() and step(): the optimizer steps without "
            "what was just computed."
        ),
        fix="Call zero_grad() before backward() or after step().",
        find=_zeroes_before_step,
    ),
    Rule(
        name="missing-zero-grad",
        risk="high",
        message=(
            "Gradients are never cleared in this loop: each step adds to those of all steps "
            "before, and the updates grow until the loss diverges."
        ),
        fix="Call optimizer.zero_grad() once for each step.",
        find=_never_zeroes,
    ),
    Rule(
        name="scheduler-before-optimizer",
        risk="medium",
        message=(
            "The learning-rate schedule steps before the optimizer does: the first value of the "
            "schedule is never used."
        ),
        fix="Call scheduler.step() after optimizer.step().",
        find=_schedules_first,
    ),
)
