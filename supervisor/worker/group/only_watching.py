"""From a certain step on a training is watched and no more."""

from __future__ import annotations

from collections.abc import Collection

from supervisor.settings import PolicySettings
from supervisor.training_state.snapshot import SnapshotRing
from supervisor.worker.ground.error_barrier import ErrorBarrier
from supervisor.worker.ground.run_warnings import RunWarnings


class OnlyWatching:
    """No treatment, no snapshot, no checkpoint, so no fast-forward either: a state of one rank is
    of no use without the others'. What this process does is recorded and judged as always.

    Args:
        saving: names of the boundary listeners that copy or save the state.
    """

    def __init__(
        self,
        *,
        policy: PolicySettings,
        snapshots: SnapshotRing,
        saving: Collection[str],
        barrier: ErrorBarrier,
        warn: RunWarnings,
    ) -> None:
        self.has_begun = False
        self._policy = policy
        self._snapshots = snapshots
        self._saving = saving
        self._barrier = barrier
        self._warn = warn

    def begin(self, why: str) -> None:
        """Called once that is known; a second call does nothing. `why` is told at the terminal."""
        if self.has_begun:
            return
        self.has_begun = True
        self._policy.observe_only = True
        for name in self._saving:
            self._barrier(name).turn_off()
        self._snapshots.clear()
        self._warn(why, aloud=True)
