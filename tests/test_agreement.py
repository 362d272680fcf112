"""What all ranks agree on, before a step is judged."""

from __future__ import annotations

import math

import pytest

from supervisor.agreement import agree
from supervisor.records import StepRecord


def test_of_one_rank_the_record_itself_is_judged() -> None:
    record = StepRecord(step=3, loss=0.5)

    assert agree([record]) is record


def test_the_group_has_the_mean_loss_the_sum_of_the_batches_and_the_longest_time() -> None:
    records = [
        StepRecord(step=3, loss=1.0, loss_seen=True, batch_size=8, step_time_s=0.1, lr=0.5),
        StepRecord(step=3, batch_size=8, step_time_s=0.3, lr=0.7, announced=True),
        StepRecord(step=3, loss=2.0, loss_seen=True, batch_size=4, grad_norm=3.0, lr=0.5),
    ]

    group = agree(records)

    assert (group.loss, group.batch_size, group.step_time_s, group.lr) == (1.5, 20, 0.3, 0.5)
    assert group.loss_seen
    assert group.announced
    assert not group.grad_norm_seen


@pytest.mark.parametrize(
    ("of_ranks", "of_group"),
    [((1.0, math.nan), math.nan), ((math.inf, 1.0), math.inf), ((math.inf, math.nan), math.nan)],
)
def test_what_is_not_finite_on_one_rank_is_not_finite_for_the_group(
    of_ranks: tuple[float, float], of_group: float
) -> None:
    group = agree(
        [
            StepRecord(step=1, loss=x, loss_seen=True, grad_norm=x, grad_norm_seen=True)
            for x in of_ranks
        ]
    )

    assert group.has_nonfinite_loss
    assert group.has_nonfinite_grad
    assert [group.loss, group.grad_norm] == pytest.approx([of_group] * 2, nan_ok=True)


def test_records_of_different_steps_are_not_merged() -> None:
    with pytest.raises(ValueError, match="of steps 3, 4"):
        agree([StepRecord(step=3), StepRecord(step=4)])
