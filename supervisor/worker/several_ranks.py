"""A training of several ranks is only watched: one rank that is treated alone leaves the others."""

from __future__ import annotations

import sys

from supervisor.codes import Found
from supervisor.events.state_events import StateFound
from supervisor.ranks import LEAD_RANK
from supervisor.settings import PolicySettings
from supervisor.storage.journal.journal import Journal
from supervisor.training_state.snapshot import SnapshotRing
from supervisor.worker.ground.error_barrier import ErrorBarrier
from supervisor.worker.ground.progress import Progress
from supervisor.worker.ground.run_warnings import RunWarnings
from supervisor.worker.live.checkpoint_listener import CheckpointListener
from supervisor.worker.live.snapshot_listener import SnapshotListener
from supervisor.worker.treatment.dispatcher import Dispatcher


class SeveralRanks:
    """Notices that this process is one rank of several, and leaves its training alone from then on.

    No treatment, no snapshot, no checkpoint, so no fast-forward either: a state of one rank is of
    no use without the others'. What this process does is recorded and judged as always.
    """

    def __init__(
        self,
        *,
        policy: PolicySettings,
        dispatcher: Dispatcher,
        snapshots: SnapshotRing,
        progress: Progress,
        journal: Journal,
        barrier: ErrorBarrier,
        warn: RunWarnings,
    ) -> None:
        self._policy = policy
        self._dispatcher = dispatcher
        self._snapshots = snapshots
        self._progress = progress
        self._journal = journal
        self._barrier = barrier
        self._warn = warn
        self._only_watches = False

    def joined(self, world_size: int) -> None:
        """Called in the training's process after it joined a group of more than one rank."""
        with self._barrier("several ranks"):
            if self._only_watches:
                return
            self._only_watches = True
            self._dispatcher.judge_waiting()
            self._policy.observe_only = True
            for name in (SnapshotListener.name, CheckpointListener.name):
                self._barrier(name).is_on = False
            self._snapshots.clear()
            step = self._progress.steps_done
            found = StateFound(step=step, found=Found.SEVERAL_RANKS, world_size=world_size)
            self._journal.write(found)
            self._warn(
                f"{world_size} ranks: several ranks are not supported yet: this one is only "
                "watched: nothing is treated or saved, and after a failure all ranks have to be "
                "started again, from the script's own checkpoints",
                aloud=True,
            )

    def joined_in_child(self, world_size: int, rank: int) -> None:
        """Called in a forked child after it joined a group: one rank says it for all."""
        if rank == LEAD_RANK:
            print(f"supervisor: warning: {_not_supervised(world_size)}", file=sys.stderr)

    def started(self, processes: int) -> None:
        """Called in the training's process before it starts others by torch.multiprocessing."""
        with self._barrier("several ranks"):
            self._warn(_not_supervised(processes), aloud=True)


def _not_supervised(processes: int) -> str:
    what = f"{processes} processes" if processes != 1 else "a process"
    return (
        f"{what} of the script's own (torch.multiprocessing): what is trained there is not "
        "supervised: several ranks are not supported yet"
    )
