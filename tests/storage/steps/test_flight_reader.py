"""The steps of several ranks are joined as their records are when they are judged."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.agreement import agree
from supervisor.records import StepRecord
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_reader import join_steps, read_group_steps
from supervisor.storage.steps.flight_recorder import FlightRecorder
from supervisor.storage.steps.step_rows import GRAD_SEEN, LOSS_SEEN, STEP_DTYPE

FIGURES = st.one_of(st.floats(0.0, 1e6), st.sampled_from([math.nan, math.inf]))
ROWS = st.tuples(FIGURES, FIGURES, st.booleans(), st.booleans(), st.integers(1, 64))


def rows_of(*steps: int, loss: float = 1.0) -> np.ndarray:
    rows = np.zeros(len(steps), STEP_DTYPE)
    rows["step"], rows["loss"], rows["flags"] = steps, loss, LOSS_SEEN
    return rows


@given(st.lists(ROWS, min_size=2, max_size=4))
def test_they_are_joined_as_the_judge_does(
    ranks: list[tuple[float, float, bool, bool, int]],
) -> None:
    arrays, records = [], []
    for loss, norm, saw_loss, saw_norm, size in ranks:
        rows = rows_of(7, loss=loss)
        rows["grad_norm"], rows["batch_size"] = norm, size
        rows["flags"] = LOSS_SEEN * saw_loss | GRAD_SEEN * saw_norm
        arrays.append(rows)
        records.append(
            StepRecord(
                step=7,
                loss=loss,
                grad_norm=norm,
                lr=0.1,
                batch_size=size,
                loss_seen=saw_loss,
                grad_norm_seen=saw_norm,
            )
        )

    (joined,), agreed = join_steps(arrays), agree(records)

    assert joined["loss"] == pytest.approx(agreed.loss, nan_ok=True)
    assert joined["grad_norm"] == pytest.approx(agreed.grad_norm, nan_ok=True)
    assert joined["batch_size"] == agreed.batch_size
    assert bool(joined["flags"] & LOSS_SEEN) == agreed.loss_seen


def test_what_one_rank_lacks_is_left_out_and_a_step_that_comes_again_is_there_twice() -> None:
    one, other = rows_of(1, 2, 3, 2, 3, loss=2.0), rows_of(2, 3, 2, 4, loss=4.0)

    joined = join_steps([one, other])

    assert list(joined["step"]) == [2, 3, 2]
    assert list(joined["loss"]) == [3.0, 3.0, 3.0]


def test_what_the_others_lack_is_told_by_those_that_have_it() -> None:
    one, other = rows_of(1, 2, 3, loss=2.0), rows_of(2, loss=math.nan)

    joined = join_steps([one, other], only_common=False)

    assert list(joined["step"]) == [1, 2, 3]
    assert [joined["loss"][0], joined["loss"][2]] == [2.0, 2.0]
    assert math.isnan(joined["loss"][1])


def test_a_rank_that_makes_no_steps_does_not_count(tmp_path: Path) -> None:
    rundir = RunDirectory(tmp_path)
    rundir.run_json.write_text("{}")
    recorder = FlightRecorder(rundir.steps(1), attempt=1)
    recorder.append(StepRecord(step=5, loss=2.0, grad_norm=1.0, lr=0.1), time=1.0)
    recorder.close()

    assert list(read_group_steps(rundir, 3)["step"]) == [5]
