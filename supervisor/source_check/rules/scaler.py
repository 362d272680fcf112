"""A gradient scaler that is used in part only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from supervisor.source_check.events import Event, Moment, training_of
from supervisor.source_check.names import dotted
from supervisor.source_check.operations import keyword_of
from supervisor.source_check.regions import under_autocast
from supervisor.source_check.rule import Rule
from supervisor.source_check.scope import place
from supervisor.source_check.source import Source


def _clips_before_unscale(source: Source) -> Iterator[ast.AST]:
    for scope in source.scopes:
        events = training_of(source).events(scope)
        scaled = [event for event in events if event.scaled]
        unscales = [event for event in events if event.moment is Moment.UNSCALE]
        for clip in (event for event in events if event.moment is Moment.CLIP):
            follows = any(_precedes(source, backward, clip) for backward in scaled)
            if follows and not any(_precedes(source, unscale, clip) for unscale in unscales):
                yield clip.call


def _precedes(source: Source, first: Event, second: Event) -> bool:
    return place(first.call) < place(second.call) and source.can_meet(first.call, second.call)


def _steps_without_update(source: Source) -> Iterator[ast.AST]:
    training = training_of(source)
    if next(training.every_event(Moment.SCALER_UPDATE), None) is not None:
        return
    if not any(event.scaled for _, event in training.every_event(Moment.BACKWARD)):
        return  # the loop that scales, and may update, is in another file
    for _, event in training.every_event(Moment.SCALER_STEP):
        yield event.call


def _steps_past_the_scaler(source: Source) -> Iterator[ast.AST]:
    for scope in source.scopes:
        events = training_of(source).events(scope)
        scaler_steps = [event for event in events if event.moment is Moment.SCALER_STEP]
        for step in (event for event in events if event.moment is Moment.STEP):
            scaled = any(
                event.scaled
                and _precedes(source, event, step)
                and source.loops(event.call)[:1] == source.loops(step.call)[:1]
                for event in events
            )
            twice = any(
                dotted(other.subject) == step.receiver and source.can_meet(other.call, step.call)
                for other in scaler_steps
                if other.subject is not None
            )
            if scaled and (twice or not scaler_steps):
                yield step.call


def _half_without_scaler(source: Source) -> Iterator[ast.AST]:
    training = training_of(source)
    if training.has_scaler():
        return
    for _, event in training.every_event(Moment.BACKWARD):
        if event.managed or event.subject is None:
            continue
        scope = source.scope_of(event.call)
        for call in scope.all(ast.Call):
            if _is_half_autocast(source, call) and source.can_meet(call, event.call):
                yield call
        around = under_autocast(source, event.call)
        if around is not None and source.scope_of(around) is not scope:
            continue


def _is_half_autocast(source: Source, call: ast.Call) -> bool:
    if not source.names.is_torch(call.func, "autocast"):
        return False
    dtype = keyword_of(call, "dtype")
    return dtype is not None and source.names.is_torch(dtype, "float16", "half")


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
