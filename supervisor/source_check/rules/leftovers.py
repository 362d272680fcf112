"""What was switched on for a search and stayed on, and what was left out of a loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from supervisor.source_check.events import Moment, training_of
from supervisor.source_check.operations import is_literal, keyword_of
from supervisor.source_check.scope import Scope, dotted, last_name
from supervisor.source_check.source import Rule, Source
from supervisor.source_check.values import full_name, is_torch


def _detects_anomalies(source: Source) -> Iterator[ast.AST]:
    for _, call in source.all(ast.Call):
        if not is_torch(source, call.func, "set_detect_anomaly", "detect_anomaly"):
            continue
        is_call = is_torch(source, call.func, "set_detect_anomaly")
        if is_call:
            given = call.args[0] if call.args else keyword_of(call, "mode")
            if not is_literal(given, True):
                continue
        if is_literal(keyword_of(call, "check_nan"), False):  # then it only keeps call stacks
            continue
        optional = any(
            held and not (is_call and "__name__" in text) for text, held in source.facts(call)
        )
        if not optional and not _is_around_no_training(source, call):
            yield call


def _is_around_no_training(source: Source, call: ast.Call) -> bool:
    """Is this the head of a ``with`` block in which nothing is trained, as far as one can see?"""
    for block in source.ancestors_in_scope(call):
        if isinstance(block, (ast.With, ast.AsyncWith)) and any(
            source.is_inside(call, item) for item in block.items
        ):
            inside = [node for line in block.body for node in ast.walk(line)]
            called = {last_name(n.func) for n in inside if isinstance(n, ast.Call)}
            is_loop = any(isinstance(node, (ast.For, ast.While)) for node in inside)
            return not is_loop and not called & {"backward", "step", "fit", "train"}
    return False


def _never_reshuffles(source: Source) -> Iterator[ast.AST]:
    """A distributed sampler of a training loop whose epoch is never set."""
    for node in source.nodes:
        if isinstance(node, (ast.Attribute, ast.Name)) and last_name(node) == "set_epoch":
            return
    steps = list(training_of(source).every_event(Moment.STEP, Moment.SCALER_STEP))
    if not any(source.loops(event.call) for _, event in steps):
        return
    for scope in source.scopes:
        for assignment in scope.every_assignment():
            value = assignment.value
            if (
                isinstance(value, ast.Call)
                and _is_training_sampler(source, value, assignment.key)
                and _is_used_for_training(source, scope, assignment.key)
            ):
                yield value


def _is_used_for_training(source: Source, scope: Scope, key: str) -> bool:
    """Is the sampler made where training goes on, or given to a loader?"""
    events = training_of(source).events(scope)
    if any(event.moment in {Moment.STEP, Moment.SCALER_STEP} for event in events):
        return True
    for _, call in source.all(ast.Call):
        if last_name(call.func).endswith(("Loader", "BatchSampler")):
            given = [*call.args, *(keyword.value for keyword in call.keywords)]
            if any(dotted(argument) == key for argument in given):
                return True
    return False


def _is_training_sampler(source: Source, call: ast.Call, key: str) -> bool:
    if not full_name(source, call.func).endswith(".DistributedSampler"):
        return False
    if is_literal(keyword_of(call, "shuffle"), False):
        return False
    name = key.lower()
    return not any(word in name for word in ("val", "test", "eval"))


RULES = (
    Rule(
        name="anomaly-detection-on",
        risk="low",
        message=(
            "Autograd's anomaly detection is on in every run: each operation keeps its call "
            "stack and each gradient is checked, which makes training several times slower."
        ),
        fix="Switch it on by an option, for the search only.",
        find=_detects_anomalies,
    ),
    Rule(
        name="sampler-without-set-epoch",
        risk="medium",
        message=(
            "set_epoch of the distributed sampler is never called: every epoch has the same "
            "order of samples."
        ),
        fix="Call sampler.set_epoch(epoch) at the start of each epoch.",
        find=_never_reshuffles,
    ),
)
