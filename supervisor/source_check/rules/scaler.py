"""A gradient scaler that is used incompletely."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from supervisor.source_check.course import calling, course_of
from supervisor.source_check.events import Moment, training_of
from supervisor.source_check.operations import keyword_of
from supervisor.source_check.scope import Scope, dotted
from supervisor.source_check.source import Rule, Source, contradicts
from supervisor.source_check.values import is_torch


def _clips_before_unscale(source: Source) -> Iterator[ast.AST]:
    for scope in source.scopes:
        events = course_of(source, scope)
        scaled = [event for event in events if event.scaled]
        unscales = [event for event in events if event.moment is Moment.UNSCALE]
        for clip in (event for event in events if event.moment is Moment.CLIP):
            before = [backward for backward in scaled if backward.precedes(clip)]
            if before and not any(unscale.precedes(clip) for unscale in unscales):
                yield clip.apart_from(before[-1])


def _steps_without_update(source: Source) -> Iterator[ast.AST]:
    updates = list(training_of(source).every_event(Moment.SCALER_UPDATE))
    for scope in source.scopes:
        events = course_of(source, scope)
        own = [event for event in events if event.path == (event.call,)]
        steps = [event for event in own if event.moment is Moment.SCALER_STEP]
        if not steps or not any(event.scaled for event in events):
            continue  # the loop that scales, and may update, is elsewhere
        around = [scope, *calling(source, scope)]
        in_class = {source.class_of(each.node) for each in around} - {None}
        if not any(
            source.class_of(updating.node) in in_class or updating in around
            for updating, _ in updates
        ) and not any(_updates(source, each) for each in around):
            yield steps[0].call


def _updates(source: Source, scope: Scope) -> bool:
    return any(event.moment is Moment.SCALER_UPDATE for event in course_of(source, scope))


def _steps_past_the_scaler(source: Source) -> Iterator[ast.AST]:
    for scope in source.scopes:
        events = course_of(source, scope)
        scaler_steps = [event for event in events if event.moment is Moment.SCALER_STEP]
        for step in (event for event in events if event.moment is Moment.STEP):
            scaled = [
                event
                for event in events
                if event.scaled and event.precedes(step) and event.loops[:1] == step.loops[:1]
            ]
            twice = any(
                dotted(other.subject) == step.receiver and other.can_meet(step)
                for other in scaler_steps
                if other.subject is not None
            )
            if scaled and (twice or not scaler_steps):
                yield step.apart_from(scaled[-1])


def _half_without_scaler(source: Source) -> Iterator[ast.AST]:
    if training_of(source).has_scaler():
        return
    for scope in source.scopes:
        backwards = [
            event
            for event in course_of(source, scope)
            if event.moment is Moment.BACKWARD and not event.managed and event.subject is not None
        ]
        for call in scope.all(ast.Call) if backwards else ():
            if _is_half_autocast(source, call):
                facts = source.facts(call)
                if any(not contradicts(facts, event.facts) for event in backwards):
                    yield call


def _is_half_autocast(source: Source, call: ast.Call) -> bool:
    if not is_torch(source, call.func, "autocast"):
        return False
    dtype = keyword_of(call, "dtype")
    return dtype is not None and is_torch(source, dtype, "float16", "half")


RULES = (
    Rule(
        name="clip-before-unscale",
        risk="high",
        message=(
            "Gradients are clipped while they are still multiplied by the loss scale: the limit "
            "is thousands of times too small and every update is cut to almost nothing."
        ),
        fix="Call scaler.unscale_(optimizer) before clipping.",
        find=_clips_before_unscale,
    ),
    Rule(
        name="scaler-without-update",
        risk="high",
        message=(
            "scaler.step() is called but scaler.update() never is: the loss scale stays where it "
            "began, and after an overflow every later step overflows too."
        ),
        fix="Call scaler.update() after each scaler.step().",
        find=_steps_without_update,
    ),
    Rule(
        name="step-bypasses-scaler",
        risk="high",
        message=(
            "The loss was scaled, but the optimizer steps without the scaler: it applies "
            "gradients that are multiplied by the loss scale, infinities included."
        ),
        fix="Replace optimizer.step() by scaler.step(optimizer) and scaler.update().",
        find=_steps_past_the_scaler,
    ),
    Rule(
        name="fp16-without-scaler",
        risk="high",
        message=(
            "FP16 autocast without a gradient scaler: gradients below 6e-8 become zero and "
            "parts of the model silently stop learning."
        ),
        fix="Use torch.amp.GradScaler, or dtype=torch.bfloat16, which needs none.",
        find=_half_without_scaler,
    ),
)
