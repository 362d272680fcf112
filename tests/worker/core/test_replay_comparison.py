from __future__ import annotations

import pytest

from supervisor.errors import ReplayError
from supervisor.storage.steps.replay_log import StepMark
from supervisor.worker.core.replay_comparison import ReplayComparison

MARK = (3, 0.1, 1, 1, 77)
RECORDED = StepMark.pack(*MARK)


def test_the_first_difference_is_kept_and_told_once() -> None:
    told: list[str] = []
    comparison = ReplayComparison(10, told.append)
    comparison.steps_done = 3

    with comparison:
        comparison.compare(RECORDED, MARK)
    assert comparison.holds
    with comparison:
        comparison.compare(RECORDED, (3, 0.2, 1, 1, 77))
    comparison.disprove("later")

    assert comparison.mismatch == "step 3: learning rate is 0.2, the recorded run had 0.1"
    assert told == [comparison.mismatch]


def test_other_errors_pass() -> None:
    comparison = ReplayComparison(10)

    with pytest.raises(StopIteration), comparison:
        raise StopIteration
    with comparison:
        raise ReplayError("a batch")

    assert comparison.mismatch == "step 0: a batch"
