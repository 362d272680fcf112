"""The samples of the script's data that were found to hold NaN or infinity."""

from __future__ import annotations

from supervisor.report.facts.crash_report import Incident
from supervisor.report.facts.figures import integer
from supervisor.report.facts.run_data import RunData

NAMED = 3
NEAR_STEPS = 50
"""A sample may be found some steps after its batch, when the script fetches ahead."""


def samples_behind(run_data: RunData, incident: Incident) -> str:
    """Returns the samples that were found at an incident or soon after, for a sentence.

    ``sample 37 of TensorDataset of 640``; empty if none was, or the incident is of another kind.
    """
    if incident.step is None or incident.key not in ("nonfinite_loss", "nonfinite_gradient"):
        return ""
    found: dict[str, list[str]] = {}
    for line in run_data.bad_samples:
        at = integer(line.get("found_at"))
        if at is None or not incident.step <= at <= incident.step + NEAR_STEPS:
            continue
        names = found.setdefault(str(line.get("data")), [])
        if str(line.get("sample")) not in names:
            names.append(str(line.get("sample")))
    return "; ".join(_told(data, names) for data, names in found.items())


def _told(data: str, names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"sample{'s' * (len(names) > 1)} {', '.join(names[:NAMED])}{more} of {data}"
