"""Replicas of a tensor that have come to differ between ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from supervisor.codes import Found, Warned
from supervisor.errors import CheckpointError
from supervisor.events.state_events import StateFound
from supervisor.events.step_events import CorruptionFound
from supervisor.storage.checkpoints.checkpoints import CheckpointRing
from supervisor.storage.journal.journal import Journal
from supervisor.training_state.replicas import (
    Split,
)
from supervisor.worker.core.boundaries import BoundarySchedule
from supervisor.worker.core.progress import RunWarnings


class SplitReplicas:
    """Names tensor and rank, and has all ranks go back to the checkpoint before.

    There they were alike: its replicated tensors are on disk once. Called in the thread that
    writes checkpoints.

    Args:
        may_go_back: asked each time: the policy treats, and there were not many such retries in
            this run.
    """

    def __init__(
        self,
        *,
        ring: CheckpointRing,
        schedule: BoundarySchedule,
        journal: Journal,
        warn: RunWarnings,
        may_go_back: Callable[[], bool],
    ) -> None:
        self._ring = ring
        self._schedule = schedule
        self._journal = journal
        self._warn = warn
        self._may_go_back = may_go_back

    def found(self, step: int, splits: Sequence[Split]) -> None:
        """Called before the checkpoint of `step` is published.

        Raises:
            CheckpointError: it must not be, because all go back.
        """
        earlier = [one.step for one in self._ring.checkpoints() if one.step < step]
        newest = max(earlier, default=None)
        goes_back = self._may_go_back() and newest is not None
        for split in splits:
            self._journal.write(
                CorruptionFound(
                    step=step,
                    tensor=split.path,
                    elements=None,
                    value=math.nan,
                    before=math.nan,
                    bound=math.nan,
                    bit=None,
                    healed="rollback" if goes_back else "no",
                    from_step=newest,
                    rule="replica",
                    ranks=split.odd,
                )
            )
        what = f"the replicas of {splits[0].path} differ at step {step}{_whose(splits[0])}"
        self._warn(f"suspect hardware: {what}", aloud=True, found=Warned.SUSPECT_HARDWARE)
        if not goes_back:
            return
        self._journal.write(
            StateFound(step=step, found=Found.RETRY_ASKED, before_step=newest, detail=what)
        )
        self._schedule.ask_to_leave("retry", f"{what}: all go back to step {newest}")
        raise CheckpointError(f"{what}: all go back to step {newest}, where they were alike")


def _whose(split: Split) -> str:
    if not split.odd:
        return ", and no majority of ranks tells which one is right"
    named = ", ".join(map(str, split.odd))
    return f": rank {named} holds another value than the others"
