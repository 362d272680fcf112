"""The signature by which crashes are compared."""

from __future__ import annotations

from typing import Any

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
