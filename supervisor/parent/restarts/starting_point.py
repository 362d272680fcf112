"""Which checkpoint a new attempt starts from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from supervisor.errors import CheckpointError, UsageError
from supervisor.storage.checkpoints.checkpoints import Checkpoint

LAST_STABLE = "last-stable"
LATEST = "latest"


class Checkpoints(Protocol):
    """What is needed of a `CheckpointRing`."""

    def newest_verified(self, before_step: int | None = None) -> Checkpoint | None: ...

    def last_stable(self, before_step: int | None = None) -> Checkpoint | None: ...

    def get(self, step: int) -> Checkpoint: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingPoint:
    """The checkpoint of an attempt (None: from the script's start), and why, in a few words.

    `is_older`: later checkpoints contain the trouble, and are to be removed.
    """

    step: int | None
    reason: str
    is_older: bool = False


def after_failure(
    checkpoints: Checkpoints,
    start: str,
    *,
    onset_step: int | None = None,
    before_step: int | None = None,
) -> StartingPoint:
    """Returns where an attempt starts after another one failed.

    Args:
        checkpoints: of the run; damaged ones are passed over.
        start: ``stable`` after numerical trouble, else ``latest``.
        onset_step: first step at which the trouble was visible, if known. Early in a run nothing
            is stable yet; then a checkpoint from well before the onset is the next best.
        before_step: with ``latest``, only checkpoints of earlier steps.
    """
    if start != "stable":
        newest = checkpoints.newest_verified(before_step)
        if before_step is None:
            return _point(newest, "newest verified checkpoint")
        return _point(
            newest, f"newest verified checkpoint before step {before_step}", is_older=True
        )
    stable = checkpoints.last_stable()
    if stable is not None:
        return _point(stable, "newest stable checkpoint", is_older=True)
    if onset_step is not None and onset_step > 0:
        earlier = checkpoints.newest_verified(before_step=onset_step)
        if earlier is not None:
            reason = f"none is stable: newest one before the trouble began at step {onset_step}"
            return _point(earlier, reason, is_older=True)
    return StartingPoint(step=None, reason="no stable checkpoint: from the start", is_older=True)


def as_asked(checkpoints: Checkpoints, wish: str) -> StartingPoint:
    """Returns where `resume --from WISH` starts.

    Raises:
        UsageError: there is no such checkpoint, it is damaged, or `wish` is no step.
    """
    if wish == LATEST:
        found = checkpoints.newest_verified()
    elif wish == LAST_STABLE:
        found = checkpoints.last_stable()
    else:
        found = _of_step(checkpoints, wish)
    if found is None:
        raise UsageError(f"--from {wish}: this run has no such checkpoint: see RUN/checkpoints")
    return _point(found, f"asked for with --from {wish}", is_older=wish != LATEST)


def _of_step(checkpoints: Checkpoints, wish: str) -> Checkpoint:
    if not wish.isdecimal():
        raise UsageError(f"--from {wish}: give {LAST_STABLE}, {LATEST} or a step")
    try:
        return checkpoints.get(int(wish))
    except CheckpointError as error:
        raise UsageError(f"--from {wish}: {error}") from error


def _point(found: Checkpoint | None, reason: str, *, is_older: bool = False) -> StartingPoint:
    if found is None:
        return StartingPoint(
            step=None, reason="no checkpoint to use: from the start", is_older=is_older
        )
    return StartingPoint(step=found.step, reason=reason, is_older=is_older)
