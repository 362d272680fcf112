"""What all ranks agree on, before a step is judged."""

from __future__ import annotations

import pytest

from supervisor.agreement import agree
from supervisor.records import StepRecord


def test_of_one_rank_the_record_itself_is_judged() -> None:
    record = StepRecord(step=3, loss=0.5)

    assert agree([record]) is record


def test_several_ranks_are_not_judged_as_if_they_were_one() -> None:
    with pytest.raises(ValueError, match="too many"):
        agree([StepRecord(step=3), StepRecord(step=3)])
