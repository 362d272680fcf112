"""A step of which there is nothing more to know than a few numbers."""

from __future__ import annotations

from typing import TypeAlias

from supervisor.records import StepRecord

OrdinaryStep: TypeAlias = tuple[int, float, float, float, float, int, float]
"""Step, loss, gradient norm, learning rate, seconds, batch size and memory in GiB. Most steps are
no more than this until they are judged together: one `StepRecord` in the middle of a training,
with nothing in the caches, costs several times what it does in the row of them that is made then
(docs/architecture.md)."""


def as_record(values: OrdinaryStep) -> StepRecord:
    step, loss, grad_norm, lr, step_time_s, batch_size, memory_gib = values
    return StepRecord(
        step=step,
        loss=loss,
        grad_norm=grad_norm,
        lr=lr,
        step_time_s=step_time_s,
        batch_size=batch_size,
        memory_gib=memory_gib,
        loss_seen=True,
        grad_norm_seen=True,
    )
