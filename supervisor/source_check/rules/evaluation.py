"""Evaluations that change the training, and what an epoch or a search for errors leaves behind."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from supervisor.source_check.course import course_of
from supervisor.source_check.events import Moment, training_of
from supervisor.source_check.operations import is_literal, keyword_of, without_gradients
from supervisor.source_check.scope import Scope, dotted, last_name
from supervisor.source_check.source import Rule, Source
from supervisor.source_check.values import full_name, is_torch

_GRADIENT_SWITCHES = frozenset(
    {"grad", "no_grad", "inference_mode", "set_grad_enabled", "requires_grad_", "requires_grad"}
)
_GRADIENTS = frozenset({"backward", "manual_backward", "zero_grad"})


def _calls_on(scope: Scope, method: str) -> Iterator[tuple[str, ast.Call]]:
    """Yields ``model``'s name and the call for each ``model.eval()`` of a scope."""
    for call in scope.all(ast.Call):
        if isinstance(call.func, ast.Attribute) and call.func.attr == method:
            owner = dotted(call.func.value)
            if owner is not None:
                yield owner, call


def _stays_in_eval(source: Source) -> Iterator[ast.AST]:
    for scope in source.scopes:
        events = course_of(source, scope)
        steps = [e for e in events if e.moment in {Moment.STEP, Moment.SCALER_STEP}]
        trained = [event for event in events if event.moment is Moment.TRAIN]
        for leaves in (event for event in events if event.moment is Moment.EVAL and event.loops):
            loop = leaves.loops[-1]
            beside = [step for step in steps if loop in step.loops]
            if not beside or any(loop in event.loops for event in trained):
                continue
            if _is_called(loop, leaves.receiver) and _is_optimised(source, leaves.receiver):
                yield leaves.apart_from(beside[-1])


def _is_called(loop: ast.AST, model: str) -> bool:
    """Does the loop call the model itself? What is evaluated only is trained elsewhere."""
    return any(isinstance(n, ast.Call) and dotted(n.func) == model for n in ast.walk(loop))


def _is_optimised(source: Source, model: str) -> bool:
    """Does an optimizer of this file get the parameters of a model of this name?"""
    short = model.rsplit(".", 1)[-1]
    for _, call in source.all(ast.Call):
        function = call.func
        if not isinstance(function, ast.Attribute) or last_name(function.value) != short:
            continue
        if any(word in function.attr for word in ("parameters", "optim", "param_groups")):
            return True
    return False


def _records_gradients(source: Source) -> Iterator[ast.AST]:
    for scope in source.scopes:
        if scope.name == "forward" or _names(scope.nodes) & _GRADIENT_SWITCHES:
            continue
        for model, call in _calls_on(scope, "eval"):
            used = _first_use_in_loop(source, scope, model, call)
            if used is None or _trains_again(scope, model, call, used):
                continue
            loop = source.loops(used)[0]
            if _names(ast.walk(loop)) & _GRADIENTS or source.is_inside(call, loop):
                continue
            if not without_gradients(source, used):
                yield call
                break


def _names(nodes: Iterable[ast.AST]) -> set[str]:
    return {last_name(node) for node in nodes if isinstance(node, (ast.Attribute, ast.Name))}


def _trains_again(scope: Scope, model: str, after: ast.Call, before: ast.Call) -> bool:
    """Is the model put back into training mode between the two calls?"""
    return any(
        owner == model and after.lineno < call.lineno < before.lineno
        for owner, call in _calls_on(scope, "train")
    )


def _first_use_in_loop(
    source: Source, scope: Scope, model: str, after: ast.Call
) -> ast.Call | None:
    for call in scope.all(ast.Call):
        if dotted(call.func) == model and source.loops(call) and call.lineno > after.lineno:
            return call
    return None


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
        name="eval-without-train",
        risk="high",
        message=(
            "The model is put into evaluation mode inside the training loop and never back: "
            "from then on dropout is off and batch norm does not learn."
        ),
        fix="Call model.train() at the start of each epoch.",
        find=_stays_in_eval,
    ),
    Rule(
        name="eval-with-gradients",
        risk="low",
        message=(
            "Evaluation records gradients that nobody uses: activations stay in memory, and "
            "batches that fit without them do not."
        ),
        fix="Run it under torch.no_grad() or torch.inference_mode().",
        find=_records_gradients,
    ),
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
