"""Evaluation that leaves its mark on training."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from supervisor.source_check.events import Moment, training_of
from supervisor.source_check.names import dotted, last_name
from supervisor.source_check.regions import without_gradients
from supervisor.source_check.rule import Rule
from supervisor.source_check.scope import Scope
from supervisor.source_check.source import Source


def _calls_on(scope: Scope, method: str) -> Iterator[tuple[str, ast.Call]]:
    """Yields ``model``'s name and the call for each ``model.eval()`` of a scope."""
    for call in scope.all(ast.Call):
        if isinstance(call.func, ast.Attribute) and call.func.attr == method:
            owner = dotted(call.func.value)
            if owner is not None:
                yield owner, call


def _stays_in_eval(source: Source) -> Iterator[ast.AST]:
    for scope in source.scopes:
        steps = [
            event.call
            for event in training_of(source).events(scope)
            if event.moment in {Moment.STEP, Moment.SCALER_STEP}
        ]
        trained = list(_calls_on(scope, "train"))
        for model, call in _calls_on(scope, "eval"):
            loops = source.loops(call)
            if not loops or call.args or not any(loops[-1] in source.loops(s) for s in steps):
                continue
            if not _is_called(scope, model) or not _is_optimised(source, model):
                continue
            inside = [c for _, c in trained if source.is_inside(c, loops[-1])]
            if not inside and not _restores_mode(source, scope):
                yield call


def _is_called(scope: Scope, model: str) -> bool:
    return any(dotted(call.func) == model for call in scope.all(ast.Call))


def _is_optimised(source: Source, model: str) -> bool:
    """Does an optimizer of this file get the parameters of a model of this name?"""
    short = model.rsplit(".", 1)[-1]
    for _, call in source.all(ast.Call):
        function = call.func
        if not isinstance(function, ast.Attribute) or last_name(function.value) != short:
            continue
        if function.attr in {"parameters", "named_parameters"}:
            return True
    return False


def _restores_mode(source: Source, scope: Scope) -> bool:
    """Does a function that the scope calls put the model back into training mode?"""
    for call in scope.all(ast.Call):
        for function in source.functions_named(last_name(call.func)):
            inner = source.scope_for(function)
            if any(True for _ in _calls_on(inner, "train")):
                return True
    return False


def _records_gradients(source: Source) -> Iterator[ast.AST]:
    for scope in source.scopes:
        if scope.name == "forward" or _uses_gradients(scope):
            continue
        for model, call in _calls_on(scope, "eval"):
            used = _first_use_in_loop(source, scope, model, call)
            if used is None or _trains_again(scope, model, call, used):
                continue
            if not without_gradients(source, used):
                yield call
                break


def _trains_again(scope: Scope, model: str, after: ast.Call, before: ast.Call) -> bool:
    """Is the model put back into training mode between the two calls?"""
    return any(
        owner == model and after.lineno < call.lineno < before.lineno
        for owner, call in _calls_on(scope, "train")
    )


def _uses_gradients(scope: Scope) -> bool:
    names = {"backward", "grad", "no_grad", "inference_mode", "set_grad_enabled", "requires_grad_",
             "requires_grad"}  # fmt: skip
    for node in scope.nodes:
        if isinstance(node, (ast.Attribute, ast.Name)) and last_name(node) in names:
            return True
    return False


def _first_use_in_loop(
    source: Source, scope: Scope, model: str, after: ast.Call
) -> ast.Call | None:
    for call in scope.all(ast.Call):
        if dotted(call.func) == model and source.loops(call) and call.lineno > after.lineno:
            return call
    return None


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
)
