"""The rules, one file a family."""

from __future__ import annotations

from supervisor.source_check.rules import (
    accumulation,
    autocast,
    checkpoints,
    evaluation,
    half_precision,
    scaler,
    step_order,
    unstable_maths,
)
from supervisor.source_check.source import Rule

ALL_RULES: tuple[Rule, ...] = (
    *half_precision.RULES,
    *autocast.RULES,
    *scaler.RULES,
    *step_order.RULES,
    *accumulation.RULES,
    *unstable_maths.RULES,
    *checkpoints.RULES,
    *evaluation.RULES,
)
"""In the order in which the documentation lists them."""
