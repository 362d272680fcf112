"""Which checkpoints may be removed. Pure: touches no file."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from supervisor.settings import CheckpointSettings
from supervisor.storage.checkpoints.manifest import Checkpoint


def most_kept(settings: CheckpointSettings) -> int:
    """Returns how many may be on disk at a time: the newest, two that are stable or will be, and
    the one being written."""
    return max(1, settings.keep_last) + 3


def superfluous(
    checkpoints: Sequence[Checkpoint], settings: CheckpointSettings, spoiled: Collection[int]
) -> list[Checkpoint]:
    """Returns those that are not among the newest `keep_last`, the newest stable, or ripening.

    Args:
        checkpoints: all of them, newest step last.
        settings: `keep_last` below 1 counts as 1.
        spoiled: steps that can no longer become stable.
    """
    newest = checkpoints[-max(1, settings.keep_last) :]
    stable = [c for c in checkpoints if c.stable][-1:]
    ripe_next = [ripening(checkpoints, settings, spoiled)]
    return [c for c in checkpoints if c not in newest and c not in stable and c not in ripe_next]


def superfluous_abandoned(
    abandoned: Sequence[Checkpoint], settings: CheckpointSettings
) -> list[Checkpoint]:
    """Returns all but the first and the last state that the newest trouble discarded.

    The first holds the most training that is kept nowhere else. Treatments belong to one trouble if
    each came within `stable_after_steps` of the one before.

    Args:
        abandoned: all of them, in any order.
        settings: for `stable_after_steps`.
    """
    by_time = sorted(abandoned, key=lambda c: c.time)
    first = max(0, len(by_time) - 1)
    while first > 0:
        apart = abs(by_time[first].step - by_time[first - 1].step)
        if apart > settings.stable_after_steps:
            break
        first -= 1
    return by_time[:first] + by_time[first + 1 : -1]


def ripening(
    checkpoints: Sequence[Checkpoint], settings: CheckpointSettings, spoiled: Collection[int]
) -> Checkpoint | None:
    """Returns the checkpoint that will become the next stable one if all goes well.

    It must outlive `keep_last`, or none would ever become stable where checkpoints are frequent.
    One of twice `stable_after_steps` was passed over, and is not waited for.
    """
    last_stable = max((c.step for c in checkpoints if c.stable), default=-1)
    for checkpoint in checkpoints:
        age = checkpoints[-1].step - checkpoint.step
        is_waiting = not checkpoint.stable and checkpoint.step > last_stable
        if is_waiting and checkpoint.step not in spoiled and age <= 2 * settings.stable_after_steps:
            return checkpoint
    return None
