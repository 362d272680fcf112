"""Losses whose inputs already had the loss's own activation applied."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from supervisor.source_check.operations import operation_behind, operations
from supervisor.source_check.source import Rule, Source


def _losses_of(source: Source, *, loss: str, activations: frozenset[str]) -> Iterator[ast.AST]:
    for operation in operations(source, loss):
        given = operation_behind(source, operation.operand)
        if given is not None and given.name in activations:
            yield operation.call


_SOFTMAX = frozenset({"softmax"})
_ANY = frozenset({"sigmoid", "softmax"})

RULES = (
    Rule(
        name="softmax-before-cross-entropy",
        risk="high",
        message=(
            "cross_entropy applies the softmax itself: given probabilities, the loss never comes "
            "near zero, gradients shrink, and training stalls early."
        ),
        fix="Pass the logits.",
        find=partial(_losses_of, loss="cross_entropy", activations=_SOFTMAX),
    ),
    Rule(
        name="sigmoid-before-bce-with-logits",
        risk="high",
        message=(
            "binary_cross_entropy_with_logits applies the sigmoid itself: given probabilities, "
            "the loss never comes near zero, and gradients shrink."
        ),
        fix="Pass the logits.",
        find=partial(_losses_of, loss="binary_cross_entropy_with_logits", activations=_ANY),
    ),
    Rule(
        name="nll-without-log",
        risk="high",
        message=(
            "nll_loss takes log-probabilities; given probabilities, it is no likelihood: its "
            "minimum is -1, not 0."
        ),
        fix="Use log_softmax, or cross_entropy on the logits.",
        find=partial(_losses_of, loss="nll_loss", activations=_SOFTMAX),
    ),
)
