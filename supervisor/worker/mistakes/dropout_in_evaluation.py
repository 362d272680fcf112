"""Dropout that ``eval()`` does not switch off."""

from __future__ import annotations

import ast
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from supervisor.by_identity import IdentitySet
from supervisor.worker.mistakes.evidence.places import class_of, told
from supervisor.worker.mistakes.evidence.tensors_within import beginning, same
from supervisor.worker.mistakes.mistake import ForwardSeen, Mistake, Proof, SeenSoFar

DROPOUTS = frozenset(name for name in vars(functional) if name.endswith(("dropout", "dropout1d",
    "dropout2d", "dropout3d")) and not name.startswith("_"))  # fmt: skip
DRAWING = 2


class DropoutInEvaluation(Mistake):
    """``F.dropout(x, p)``: without ``training=self.training`` it is always on.

    Proof: a module of the script's own calls one of torch's dropouts in each of its forwards and
    passes no ``training``; the model trained, and the module got gradients; then the model ran in
    ``eval()`` without gradients, on two batches in a row, and drew random numbers both times. So
    does ``scaled_dot_product_attention`` with a ``dropout_p`` that does not ask for it.

    Spares: ``training=True`` (Monte Carlo dropout), one batch several times (the same), calls
    under an ``if``, modules of libraries, models that draw in ``eval()`` for another reason.

    Sources: discuss.pytorch.org/t/dropout-functional-api-advantages-disadvantages/181,
    huggingface/transformers#33844.
    """

    kind = "dropout_in_evaluation"
    lasts = True

    def __init__(self) -> None:
        self._trained: IdentitySet[nn.Module] = IdentitySet()
        self._calls: dict[int, tuple[str, str]] | None = None
        self._state: tuple[torch.Tensor, ...] = ()
        self._given = torch.zeros(0)
        self._drew = 0

    def forward(self, seen: SeenSoFar, call: ForwardSeen) -> Proof | None:
        module = call.module
        if call.with_graph:
            if module.training:
                self._trained.add(module)
            return None
        if module.training or module not in self._trained:
            return None
        if self._calls is None:
            self._calls = _found(module)
        earlier, self._given = self._given, beginning(call.args)
        if not self._calls or same(self._given, earlier):
            self.is_over = True  # nothing to find, or several draws of one batch
            return None
        if self._drew < DRAWING:
            self._state = _random_state()
            return None
        self.is_over = True
        name, where = next(iter(self._calls.values()))
        return Proof(
            fact=(
                f"dropout is on in evaluation: {name} calls it without training=self.training, "
                "which eval() cannot switch off"
            ),
            where=where,
            names=tuple(each for each, _ in self._calls.values()),
            mend="F.dropout(x, p, training=self.training), or an nn.Dropout",
        )

    def forward_ended(self) -> None:
        if self._state:
            is_drawn = any(map(_differs, self._state, _random_state()))
            self._state = ()
            self._drew += 1
            self.is_over = self.is_over or not is_drawn


def _random_state() -> tuple[torch.Tensor, ...]:
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return (torch.get_rng_state(), *devices)


def _differs(one: torch.Tensor, other: torch.Tensor) -> bool:
    return not torch.equal(one, other)


def _found(model: nn.Module) -> dict[int, tuple[str, str]]:
    """Modules that call it in any case, and where."""
    found: dict[int, tuple[str, str]] = {}
    for name, part in nn.Module.named_modules(model):
        within = class_of(part)
        graded = [each.grad is not None for each in nn.Module.parameters(part)]
        if within is None or not any(graded):
            continue
        names: dict[str, Any] = getattr(type(part).forward, "__globals__", {})
        for line in _unconditional(_body_of_forward(within[1])):
            calls = [node for node in ast.walk(line) if isinstance(node, ast.Call)]
            if any(_is_always_on(node, names, part) for node in calls):
                at = told(within[0], line.lineno)
                found.setdefault(id(part), (name or type(part).__name__, at))
    return found


def _body_of_forward(inside: ast.ClassDef) -> list[ast.stmt]:
    for node in inside.body:
        if isinstance(node, ast.FunctionDef) and node.name == "forward":
            return node.body
    return []


def _unconditional(block: list[ast.stmt]) -> list[ast.stmt]:
    """Simple statements that each call executes, before the first ``return``."""
    lines: list[ast.stmt] = []
    for line in block:
        if not isinstance(line, ast.Return) and any(
            isinstance(node, ast.Return) for node in ast.walk(line)
        ):
            break
        if isinstance(line, ast.With):
            lines += _unconditional(line.body)
        elif not isinstance(line, (ast.If, ast.For, ast.While, ast.Try, ast.Match)) and not any(
            isinstance(node, (ast.IfExp, ast.BoolOp)) for node in ast.walk(line)
        ):
            lines.append(line)
    return lines


def _is_always_on(call: ast.Call, names: dict[str, Any], part: nn.Module) -> bool:
    function = call.func
    if isinstance(function, ast.Attribute):
        holder = function.value
        if isinstance(holder, ast.Attribute):  # nn.functional.dropout
            outer = names.get(getattr(holder.value, "id", ""))
            base = getattr(outer, holder.attr, None) if outer in (nn, torch.nn) else None
        else:
            base = names.get(getattr(holder, "id", ""))
        name = function.attr if base is functional else ""
    else:
        name = getattr(function, "id", "")
        name = name if names.get(name) is getattr(functional, name, call) else ""
    given = {each.arg: each.value for each in call.keywords}
    if name == "scaled_dot_product_attention":
        rate = given.get("dropout_p")
        is_own = isinstance(rate, ast.Attribute) and getattr(rate.value, "id", "") == "self"
        own = vars(part).get(rate.attr) if isinstance(rate, ast.Attribute) and is_own else rate
        return type(getattr(own, "value", own)) is float
    is_whole = None not in given and not any(isinstance(a, ast.Starred) for a in call.args)
    return name in DROPOUTS and is_whole and "training" not in given and len(call.args) < 3
