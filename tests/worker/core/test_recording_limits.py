"""What the user is told where the recording of a run comes to a limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.ranks import LEAD_RANK
from supervisor.storage.journal.journal import Journal
from supervisor.worker.core.recording_limits import RecordingLimits
from supervisor.worker.ground.progress import Progress
from supervisor.worker.ground.run_warnings import RunWarnings
from supervisor.worker.ground.step_probe import StepProbe
from tests.journals import read_raw


class Limits:
    """Those of a run that has made seven steps."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.progress = Progress(StepProbe(), steps_done=7)
        self.tell = RecordingLimits(
            self.progress, RunWarnings(Journal(path, attempt=1, rank=LEAD_RANK), self.progress)
        )

    @property
    def told(self) -> list[str]:
        return [str(event["message"]) for event in read_raw(self.path)]


@pytest.fixture
def limits(tmp_path: Path) -> Limits:
    return Limits(tmp_path / "journal.jsonl")


def test_a_full_tape_makes_later_resumes_approximate(limits: Limits) -> None:
    limits.tell.tape_full("the budget is used up")

    assert not limits.progress.tape_is_whole
    assert limits.told == [
        "what a resume must know is no longer recorded from step 7 on: the budget is used up: "
        "later resumes are approximate"
    ]


def test_a_full_tape_of_a_run_that_will_not_resume_exactly_is_not_told(limits: Limits) -> None:
    limits.progress.tape_is_broken("a part has failed")

    limits.tell.tape_full("the budget is used up")

    assert limits.told == []


def test_who_observes_too_much_is_told_what_to_do(limits: Limits) -> None:
    limits.tell.value_left_out("layer_9")
    limits.tell.values_thinned(4)

    assert "'layer_9'" in limits.told[0]
    assert "give values fewer names" in limits.told[0]
    assert "every 4th step" in limits.told[1]
    assert "raise observed_max_gib" in limits.told[1]
