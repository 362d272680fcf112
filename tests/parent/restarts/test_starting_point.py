from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from supervisor.codes import ExitSign, Found
from supervisor.errors import CheckpointError, UsageError
from supervisor.events.state_events import StateFound
from supervisor.parent.restarts.starting_point import (
    ExactRetries,
    after_failure,
    as_asked,
    first_made,
)
from supervisor.records import ExitCause, StepRecord, WorkerExit, WorkerOrder
from supervisor.storage.checkpoints.checkpoints import Checkpoint
from supervisor.storage.steps.flight_recorder import FlightRecorder


@dataclass
class FakeCheckpoints:
    """Step → stable."""

    steps: dict[int, bool]

    def newest_verified(self, before_step: int | None = None) -> Checkpoint | None:
        return self._newest(before_step, [True, False])

    def last_stable(self, before_step: int | None = None) -> Checkpoint | None:
        return self._newest(before_step, [True])

    def get(self, step: int) -> Checkpoint:
        if step not in self.steps:
            raise CheckpointError(f"no checkpoint of step {step}")
        return Checkpoint(step=step, path=Path())

    def _newest(self, before: int | None, kinds: list[bool]) -> Checkpoint | None:
        fitting = [
            step
            for step, stable in self.steps.items()
            if stable in kinds and (before is None or step < before)
        ]
        return Checkpoint(step=max(fitting), path=Path()) if fitting else None


RING = FakeCheckpoints({20: True, 50: True, 80: False, 90: False})


def test_after_a_failure_of_the_process_no_healthy_work_is_lost() -> None:
    start = after_failure(RING, "latest")

    assert (start.step, start.is_older) == (90, False)


def test_after_numerical_trouble_the_newest_stable_one_is_used() -> None:
    start = after_failure(RING, "stable", onset_step=85)

    assert (start.step, start.is_older) == (50, True)


def test_before_anything_is_stable_one_from_before_the_onset_is_used() -> None:
    ring = FakeCheckpoints({80: False, 90: False})

    assert after_failure(ring, "stable", onset_step=85).step == 80
    assert after_failure(ring, "stable", onset_step=80).step is None
    assert after_failure(ring, "stable").step is None


def test_without_checkpoints_the_run_starts_from_the_beginning() -> None:
    start = after_failure(FakeCheckpoints({}), "latest")

    assert start.step is None
    assert "from the start" in start.reason


@pytest.mark.parametrize(("wish", "step"), [("latest", 90), ("last-stable", 50), ("20", 20)])
def test_a_wish_is_followed(wish: str, step: int) -> None:
    assert as_asked(RING, wish).step == step


@pytest.mark.parametrize("wish", ["33", "-1", "oldest", "", "²"])
def test_a_wish_that_cannot_be_met_is_a_usage_error(wish: str) -> None:
    with pytest.raises(UsageError, match="--from"):
        as_asked(RING, wish)


def test_new_settings_are_in_force_before_the_step_that_failed() -> None:
    found = after_failure(RING, "latest", before_step=90)
    nothing = after_failure(RING, "latest", before_step=20)

    assert (found.step, found.is_older) == (80, True)
    assert (nothing.step, nothing.is_older) == (None, True)


FIRST = WorkerOrder(attempt=1)
RETRY = WorkerExit(cause=ExitCause.NONFINITE, sign=ExitSign.EXACT_RETRY)


@dataclass
class Ring:
    steps: list[int] = field(default_factory=lambda: [10, 20, 30])

    def newest_verified(self, before_step: int | None = None) -> Checkpoint | None:
        fitting = [step for step in self.steps if before_step is None or step < before_step]
        return _checkpoint(fitting[-1]) if fitting else None

    def last_stable(self, before_step: int | None = None) -> Checkpoint | None:
        raise AssertionError("a retry does not ask what is stable")

    def get(self, step: int) -> Checkpoint:
        raise AssertionError("it takes what verifies")


def _checkpoint(step: int) -> Checkpoint:
    return Checkpoint(step=step, path=Path(), reason="", time=0.0, meta={}, abandoned=False)


def asked() -> ExactRetries:
    retries = ExactRetries()
    retries.saw([StateFound(step=42, found=Found.RETRY_ASKED, before_step=20)])
    return retries


def test_a_retry_begins_at_the_checkpoint_that_the_worker_chose() -> None:
    order = asked().order(FIRST, RETRY, Ring())

    assert order is not None
    assert (order.attempt, order.checkpoint_step) == (2, 20)
    assert (order.retry_until, order.retry_of, order.retries) == (42, 1, 1)
    assert (order.lr_factor, order.careful_steps) == (1.0, 0)


def test_a_damaged_checkpoint_is_replaced_by_an_older_one() -> None:
    order = asked().order(FIRST, RETRY, Ring([10, 30]))

    assert order is not None
    assert order.checkpoint_step == 10


def test_another_end_is_no_retry_and_uses_the_wish_up() -> None:
    retries = asked()

    assert retries.order(FIRST, WorkerExit(cause=ExitCause.KILLED), Ring()) is None
    assert retries.order(FIRST, RETRY, Ring()) is None


def test_without_a_checkpoint_there_is_no_retry() -> None:
    assert asked().order(FIRST, RETRY, Ring([])) is None


@pytest.mark.parametrize(
    ("attempt", "step", "time"),
    [(1, 3, 3.0), (2, 3, 101.0), (2, 1, 100.0), (2, 90, None), (1, 90, None), (3, 0, None)],
)
def test_the_moment_of_a_step_is_found_in_its_own_attempt(
    tmp_path: Path, attempt: int, step: int, time: float | None
) -> None:
    path = tmp_path / "rank_0.steps"
    for number, first, last, began in ((1, 0, 7, 0.0), (2, 2, 6, 100.0)):
        recorder = FlightRecorder(path, number)
        for made in range(first, last):
            record = StepRecord(step=made, loss=1.0, loss_seen=True)
            recorder.append(record, time=began + made - first)
        recorder.close()

    assert first_made(path, attempt, step) == time


def test_a_flight_recorder_that_is_not_there_tells_nothing(tmp_path: Path) -> None:
    assert first_made(tmp_path / "rank_0.steps", 1, 0) is None
