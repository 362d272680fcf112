"""Losses whose inputs already had the loss's own activation applied."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from supervisor.source_check.operations import operation_behind, operations
from supervisor.source_check.rule import Rule
from supervisor.source_check.source import Source


def _losses_of(source: Source, loss: str, *activations: str) -> Iterator[ast.AST]:
    for operation in operations(source, loss):
        given = operation_behind(source, operation.operand)
        if given is not None and given.name in activations:
            yield operation.call


def _softmax_twice(source: Source) -> Iterator[ast.AST]:
    yield from _losses_of(source, "cross_entropy", "softmax")


def _sigmoid_twice(source: Source) -> Iterator[ast.AST]:
    yield from _losses_of(source, "binary_cross_entropy_with_logits", "sigmoid", "softmax")


def _no_logarithm(source: Source) -> Iterator[ast.AST]:
    yield from _losses_of(source, "nll_loss", "softmax")


RULES = (
    Rule(
        name="softmax-before-cross-entropy",
        risk="high",
        message=(
            "cross_entropy applies the softmax itself: given probabilities, the loss never comes "
            "near zero, gradients shrink, and training stalls early."
        ),
        fix="Pass the logits.",
        find=_softmax_twice,
    ),
    Rule(
        name="sigmoid-before-bce-with-logits",
        risk="high",
        message=(
            "binary_cross_entropy_with_logits applies the sigmoid itself: given probabilities, "
            "the loss never comes near zero, and gradients shrink."
        ),
        fix="Pass the logits.",
        find=_sigmoid_twice,
    ),
    Rule(
        name="nll-without-log",
        risk="high",
        message=(
            "nll_loss takes log-probabilities; given probabilities, it is no likelihood: its "
            "minimum is -1, not 0."
        ),
        fix="Use log_softmax, or cross_entropy on the logits.",
        find=_no_logarithm,
    ),
)
