"""The record of a step on which all ranks agree, before it is judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from supervisor.records import NAN, StepRecord


def agree(records: Sequence[StepRecord]) -> StepRecord:
    """Returns the group's record of one step; worker and parent judge no other.

    The loss is the mean over the ranks that saw one, and not a number if that of one is not. Times
    and memory are the largest, batches add up, and what one rank has noticed all have. Rates,
    clipping and observed values are the first rank's.

    Args:
        records: of the same step, one for each rank, in the order of ranks. With one rank it is
            the record itself.

    Raises:
        ValueError: there is none, or they are of different steps.
    """
    first = records[0] if records else None
    if first is None or any(record.step != first.step for record in records):
        steps = ", ".join(str(record.step) for record in records) or "none"
        raise ValueError(f"records of one step were to be merged, and these are of steps {steps}")
    if len(records) == 1:
        return first
    losses = [record.loss for record in records if record.loss_seen]
    norms = [record.grad_norm for record in records if record.grad_norm_seen]
    return StepRecord(
        step=first.step,
        loss=math.fsum(losses) / len(losses) if _all_finite(losses) else _worst(losses),
        grad_norm=max(norms) if _all_finite(norms) else _worst(norms),
        lr=first.lr,
        loss_scale=_of_known(min, [record.loss_scale for record in records]),
        step_time_s=_of_known(max, [record.step_time_s for record in records]),
        batch_size=sum(record.batch_size for record in records),
        memory_gib=_of_known(max, [record.memory_gib for record in records]),
        clips_at=first.clips_at,
        loss_seen=bool(losses),
        grad_norm_seen=bool(norms),
        scaler_skipped=any(record.scaler_skipped for record in records),
        others_trained=any(record.others_trained for record in records),
        begins_training=any(record.begins_training for record in records),
        announced=any(record.announced for record in records),
        in_environment=any(record.in_environment for record in records),
        observed=first.observed,
    )


def _all_finite(values: Sequence[float]) -> bool:
    return bool(values) and all(map(math.isfinite, values))


def _worst(values: Sequence[float]) -> float:
    """NaN if there is none or one of them is NaN, else infinity."""
    if not values or any(map(math.isnan, values)):
        return NAN
    return math.inf


def _of_known(choose: Callable[[Iterable[float]], float], values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return choose(known) if known else NAN
