from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from supervisor.errors import CheckpointError, UsageError
from supervisor.parent.restarts.starting_point import after_failure, as_asked
from supervisor.storage.checkpoints.checkpoints import Checkpoint


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
