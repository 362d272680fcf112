"""Whether the script itself has just changed what is trained, or what it is trained against."""

from __future__ import annotations

from supervisor.records import StepRecord

CHANGE = "script_change"
"""Observed where the loss is above all of the last steps and the script has just done one of
`DONE`, by its number (`supervisor.worker.live.script_changes`)."""

OTHER_PARAMETERS = 1.0
REFERENCE = 2.0
REWRITTEN = 3.0
ANOTHER_OPTIMIZER = 4.0

DONE = {
    OTHER_PARAMETERS: "the optimizer trains other parameters than before",
    REFERENCE: "the script has put other weights into a network that no optimizer trains",
    REWRITTEN: "the script has written weights anew that are trained",
    ANOTHER_OPTIMIZER: "the script trains with another optimizer than before",
}


def told(record: StepRecord) -> str:
    """Returns the sentence with which a new level is adopted, or nothing."""
    done = DONE.get(record.observed.get(CHANGE, 0.0))
    if done is None:
        return ""
    return f"{done}, and the loss of {record.loss:.6g} belongs to that: the new level is adopted"
