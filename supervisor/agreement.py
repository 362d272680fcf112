"""The record of a step on which all ranks agree, before it is judged."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.records import StepRecord


def agree(records: Sequence[StepRecord]) -> StepRecord:
    """Returns the group's record of one step; worker and parent judge no other.

    Args:
        records: of the same step, one for each rank. With one rank it is the record itself.

    Raises:
        ValueError: there are several: no run has more than one rank yet.
    """
    (record,) = records
    return record
