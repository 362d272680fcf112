"""Checkpoints that lack what a resumed run needs, and loads that run code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from supervisor.source_check.events import Moment, training_of
from supervisor.source_check.operations import is_literal, keyword_of
from supervisor.source_check.scope import dotted, last_name
from supervisor.source_check.source import Rule, Source
from supervisor.source_check.values import full_name, origins, sole_origin

_PROGRESS = re.compile(
    r"^(start_|last_|current_|global_|num_)?(epochs?|steps?|iters?|iterations?|updates?)(_num)?$",
    re.IGNORECASE,
)
_RNG = re.compile(r"rng|random_state|get_state", re.IGNORECASE)


def _saves(source: Source) -> Iterator[tuple[ast.Call, dict[str, ast.expr]]]:
    """Yields the first ``torch.save`` of each dictionary written out in the same function."""
    seen: set[ast.expr] = set()
    for _, call in source.all(ast.Call):
        if full_name(source, call.func) != "torch.save" or not call.args:
            continue
        saved = sole_origin(source, call.args[0])
        entries = _entries(saved)
        if saved is not None and entries and saved not in seen:
            seen.add(saved)
            yield call, entries


def _entries(saved: ast.expr | None) -> dict[str, ast.expr]:
    """The entries of a dictionary that is written out, ``{...}`` or ``dict(...)``; else none."""
    if isinstance(saved, ast.Dict) and None not in saved.keys:
        keys = [key.value if isinstance(key, ast.Constant) else "" for key in saved.keys]
        return dict(zip(map(str, keys), saved.values, strict=True))
    if not isinstance(saved, ast.Call) or dotted(saved.func) != "dict" or saved.args:
        return {}
    is_whole = all(keyword.arg for keyword in saved.keywords)
    return {keyword.arg or "": keyword.value for keyword in saved.keywords if is_whole}


def _resume_checkpoints(source: Source) -> Iterator[tuple[ast.Call, dict[str, ast.expr]]]:
    """Saves of a model's state with an epoch or a step: meant to go on from."""
    training = training_of(source)
    if next(training.every_event(Moment.BACKWARD), None) is None:
        return
    for call, entries in _saves(source):
        has_progress = any(_PROGRESS.match(key) for key in entries)
        if has_progress and any(_is_state(value) for value in entries.values()):
            yield call, entries


def _is_state(value: ast.expr) -> bool:
    return any(last_name(node) == "state_dict" for node in ast.walk(value))


def _states_of(source: Source, kind: str) -> bool:
    """Is ``state_dict()`` of an optimizer, a scheduler or a scaler taken anywhere in the file?"""
    kind_of = training_of(source).kind_of
    functions = (call.func for _, call in source.all(ast.Call))
    return any(
        isinstance(function, ast.Attribute)
        and function.attr == "state_dict"
        and kind_of(function.value) == kind
        for function in functions
    )


def _mentions(entries: dict[str, ast.expr], pattern: str) -> bool:
    texts = [*entries, *(ast.unparse(value) for value in entries.values())]
    return any(re.search(pattern, text, re.IGNORECASE) for text in texts)


def _holds_optimizer(entries: dict[str, ast.expr]) -> bool:
    """Whether an ``opt`` is an optimizer; options are often called so, too."""
    return any(
        re.search("optim", key, re.IGNORECASE)
        or (_is_state(value) and _mentions({key: value}, "optim|opt"))
        for key, value in entries.items()
    )


def _saves_weights_to_resume(source: Source) -> Iterator[ast.Call]:
    """Saves of bare weights to a file called a checkpoint, while training goes on.

    The best and the last weights are saved for use, not for further training.
    """
    training = training_of(source)
    steps = [e.call for _, e in training.every_event(Moment.STEP, Moment.SCALER_STEP)]
    for _, call in source.all(ast.Call):
        if full_name(source, call.func) != "torch.save" or len(call.args) < 2 or not steps:
            continue
        saved = sole_origin(source, call.args[0])
        if saved is None or not _is_state(saved) or isinstance(saved, ast.Dict):
            continue
        target = " ".join(_texts(source, call.args[1])).lower()
        around = " ".join(text for text, _ in source.facts(call)).lower()
        if "best" in target + around or "final" in target:
            continue
        scope = source.scope_of(call)
        is_own = "checkpoint" in scope.name.lower() or "ckpt" in scope.name.lower()
        if ("checkpoint" in target or "ckpt" in target) and (source.loops(call) or is_own):
            yield call


def _texts(source: Source, expression: ast.expr) -> Iterator[str]:
    for origin in origins(source, expression, here=True):
        yield ast.unparse(origin)


def _without_optimizer(source: Source) -> Iterator[ast.AST]:
    if not _states_of(source, "optimizer"):
        yield from _saves_weights_to_resume(source)
    for call, entries in _resume_checkpoints(source):
        if not _mentions(entries, "optim|opt_|_opt|^opt$") and not _states_of(source, "optimizer"):
            yield call


def _without_scaler(source: Source) -> Iterator[ast.AST]:
    steps = training_of(source).every_event(Moment.SCALER_STEP)
    if next(steps, None) is None or _states_of(source, "scaler"):
        return
    for call, entries in _resume_checkpoints(source):
        if _holds_optimizer(entries) and not _mentions(entries, "scaler|amp"):
            yield call


def _without_scheduler(source: Source) -> Iterator[ast.AST]:
    steps = next(training_of(source).every_event(Moment.SCHEDULER_STEP), None)
    if _states_of(source, "scheduler"):
        return
    if any(last_name(node) == "last_epoch" for node in source.nodes):
        return  # the schedule is set by hand to where it was
    for call, entries in _resume_checkpoints(source):
        has_one = steps is not None or _holds_scheduler(source, call)
        if has_one and _holds_optimizer(entries) and not _mentions(entries, "sched"):
            yield call


def _holds_scheduler(source: Source, save: ast.Call) -> bool:
    """Was the object that saves given a scheduler? It may be stepped elsewhere."""
    owner = source.class_of(save)
    return owner is not None and any(
        source.class_of(scope.node) is owner
        for key in ("self.scheduler", "self.lr_scheduler")
        for scope, _ in source.assignments(key)
    )


def _without_random_state(source: Source) -> Iterator[ast.AST]:
    if any(_RNG.search(last_name(node)) for node in source.nodes):
        return
    for call, entries in _resume_checkpoints(source):
        if _holds_optimizer(entries) and not _mentions(entries, "rng|random"):
            yield call


def _loads_code(source: Source) -> Iterator[ast.AST]:
    for _, call in source.all(ast.Call):
        is_open = is_literal(keyword_of(call, "weights_only"), False)
        if not is_open or full_name(source, call.func) != "torch.load":
            continue
        read = call.args[0] if call.args else call
        names = [last_name(origin).lower() for origin in (read, sole_origin(source, read) or read)]
        if not any("bytesio" in name or "buffer" in name for name in names):
            yield call  # a copy made in memory would be one's own


RULES = (
    Rule(
        name="checkpoint-without-optimizer",
        risk="high",
        message=(
            "The checkpoint holds the model and its progress, but not the optimizer: a "
            "resumed run starts with empty moments, and the loss jumps."
        ),
        fix="Save optimizer.state_dict() too.",
        find=_without_optimizer,
    ),
    Rule(
        name="checkpoint-without-scaler",
        risk="medium",
        message=(
            "The checkpoint does not hold the gradient scaler: a resumed run starts at the "
            "first loss scale and skips steps until it has come down."
        ),
        fix="Save scaler.state_dict() too.",
        find=_without_scaler,
    ),
    Rule(
        name="checkpoint-without-scheduler",
        risk="medium",
        message=(
            "The checkpoint does not hold the learning-rate scheduler: a resumed run starts the "
            "schedule again."
        ),
        fix="Save scheduler.state_dict() too.",
        find=_without_scheduler,
    ),
    Rule(
        name="checkpoint-without-rng",
        risk="low",
        message=(
            "The checkpoint does not hold the state of the random numbers: a resumed run sees "
            "other shuffles and dropout masks than the run it continues."
        ),
        fix="Save torch.get_rng_state() (and CUDA's, NumPy's, Python's) too.",
        find=_without_random_state,
    ),
    Rule(
        name="load-runs-code",
        risk="medium",
        message="torch.load with weights_only=False runs whatever code the file holds.",
        fix="Use weights_only=True, with torch.serialization.add_safe_globals where needed.",
        find=_loads_code,
    ),
)
