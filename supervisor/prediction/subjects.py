"""Which figure the reason of a crash risk speaks of."""

from __future__ import annotations

from supervisor.codes import Subject
from supervisor.records import StepRecord

SUBJECTS = {
    **dict.fromkeys(("loss_warning", "loss_leap", "loss_persistence"), Subject.LOSS),
    **dict.fromkeys(("steady_climb", "departure", "excursions"), Subject.LOSS),
    **dict.fromkeys(("first_rows", "rise_from_zero", "lost_at_restart"), Subject.LOSS),
    "gradient_warning": Subject.GRADIENT,
}
"""Signal → the figure that its reason speaks of."""


def subject_of(main: str, record: StepRecord) -> Subject | None:
    """The figure that the reason speaks of."""
    if main == "nonfinite":
        return Subject.LOSS if record.has_nonfinite_loss else Subject.GRADIENT
    return SUBJECTS.get(main)
