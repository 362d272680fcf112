"""What is changed about one update of an optimizer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatePlan:
    """Made before an update from its judgement and from the treatments in force.

    Attributes:
        skip: why the update is left out; empty if it is made.
        lr_factor: by which the learning rate of each group is multiplied, for this update alone.
        max_norm: to which gradient norm we clip; None where the script clips, or nobody does.
    """

    skip: str = ""
    lr_factor: float = 1.0
    max_norm: float | None = None


AS_IT_IS = UpdatePlan()
"""Nothing is changed, to the bit."""
