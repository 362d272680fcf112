"""A case: one crash and what was done about it; and how similar two crashes are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OUTCOMES = ("helped", "failed", "unknown")

_WEIGHTS = {"cause": 4.0, "shape": 2.0, "detector": 2.0, "precision": 1.0, "phase": 1.0}
"""Weights of the parts of a signature; other parts weigh 1."""
SIMILAR = 0.5
"""Share of the weights that must agree; the same cause alone is not enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One crash and what was done about it.

    Attributes:
        id: number in the library, 0 before it was added.
        time: unix seconds.
        run: the run directory.
        cause: a `Cause`'s value, or an `ExitCause`'s.
        signature: ``cause``, ``shape`` (of the explosion), ``detector`` (the first to alert),
            ``precision``, ``phase`` (of the training), and whatever else distinguishes crashes.
        treatment: what was done (``rollback``, ``cut_lr``, ``restart``, ...).
        outcome: one of `OUTCOMES`.
        script: its name, for people.
    """

    id: int = 0
    time: float = 0.0
    run: str = ""
    cause: str = ""
    signature: Mapping[str, Any] = field(default_factory=dict)
    treatment: str = ""
    outcome: str = "unknown"
    script: str = ""


def similarity(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Returns 0...1: the weighted share of the parts of two signatures that agree."""
    parts = one.keys() | other.keys()
    total = sum(_WEIGHTS.get(part, 1.0) for part in parts)
    equal = sum(
        _WEIGHTS.get(part, 1.0)
        for part in parts
        if part in one and part in other and one[part] == other[part]
    )
    return equal / total if total else 0.0


LOOK_BACK_STEPS = 50
"""Steps within which an alert belongs to the same trouble."""
_SUDDEN_STEPS = 2
_PHASES = ((100, "start"), (1000, "early"))


def signature(
    *, cause: str, step: int, rise_steps: int | None, detector: str | None, is_scaled: bool
) -> dict[str, Any]:
    """Returns the signature of trouble at `step`.

    Args:
        cause: a `Cause`'s value, or an `ExitCause`'s.
        step: where it was treated, or where the process ended.
        rise_steps: from the onset to the first warning; None without a warning.
        detector: the first to alert within `LOOK_BACK_STEPS`, if one did.
        is_scaled: a gradient scaler is in use.
    """
    shape = "none"
    if rise_steps is not None:
        shape = "sudden" if rise_steps <= _SUDDEN_STEPS else "gradual"
    return {
        "cause": cause,
        "shape": shape,
        "detector": detector or "none",
        "precision": "scaled" if is_scaled else "unscaled",
        "phase": next((name for end, name in _PHASES if step < end), "late"),
    }
