"""Confirmed collapses, and whether the training recovered from them."""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.events.step_events import AlertEvent
from supervisor.report.facts.figures import number, show
from supervisor.report.facts.run_data import RunData

CONFIRMED = "red"


def is_confirmed(event: AlertEvent) -> bool:
    """Says whether an alert is that of a collapse that has persisted (level red)."""
    return event.metadata.get("level") == CONFIRMED


def is_still_collapsed(run_data: RunData, event: AlertEvent) -> bool:
    """Says whether a value that the alert named lies below its line at the end of the run.

    False for an alert without lines: then the losses after it decide.
    """
    lines = event.metadata.get("lines")
    if not isinstance(lines, Mapping):
        return False
    courses = run_data.courses
    named = event.metadata.get("indicators")
    return any(
        name in courses and courses[name].last < number(line)
        for name, line in lines.items()
        if isinstance(named, Mapping) and name in named
    )


def latents_at_end(run_data: RunData) -> tuple[str, ...]:
    """Returns one sentence with the last values of the latents; nothing if none were observed."""
    courses = run_data.courses
    told = [
        f"{name} {show(courses[name].last)}"
        for name in ("kl", "latent_variance", "active_units")
        if name in courses
    ]
    return (f"The last values of the latents: {', '.join(told)}.",) if told else ()
