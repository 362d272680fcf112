"""What is supervised of a script that joins a group of ranks, or starts processes of its own.

From a certain step on a training is watched and no more.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection

import torch

from supervisor.codes import Found
from supervisor.events.state_events import StateFound
from supervisor.ranks import FIRST_RANK
from supervisor.training_state.snapshot import SnapshotRing
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.ranks.collective_records import CollectiveCount, CollectiveRecords
from supervisor.worker.ranks.rank_context import RankContext


class OnlyWatching:
    """No treatment, no snapshot, no checkpoint, so no fast-forward either: a state of one rank is
    of no use without the others'. What this process does is recorded and judged as always.

    Args:
        saving: names of the boundary listeners that copy or save the state.
    """

    def __init__(
        self, context: WorkerContext, snapshots: SnapshotRing, saving: Collection[str]
    ) -> None:
        self.has_begun = False
        self._policy = context.policy
        self._snapshots = snapshots
        self._saving = saving
        self._breakers = context.breakers
        self._warn = context.warn

    def start(self, why: str) -> None:
        """Called once that is known; a second call does nothing. `why` is told at the terminal."""
        if self.has_begun:
            return
        self.has_begun = True
        self._policy.observe_only = True
        for name in self._saving:
            self._breakers(name).turn_off()
        self._snapshots.clear()
        self._warn(why, aloud=True)


class SeveralRanks:
    """Notices ranks that were not started by `supervisor run`: such a training is only watched.

    Args:
        ranks: those that it did start.
        judge_waiting: has the steps judged whose judgement waits for later ones.
    """

    def __init__(
        self,
        context: WorkerContext,
        ranks: RankContext,
        judge_waiting: Callable[[], object],
        only_watching: OnlyWatching,
    ) -> None:
        rundir, attempt, rank = context.rundir, context.attempt, context.rank
        records = CollectiveRecords(rundir.stacks(attempt, rank), rundir.records(attempt, rank))
        tells = [records.look] if ranks.waiting is None else [records.look, ranks.waiting.tell]
        self._place = context.place
        self._collectives = CollectiveCount(rundir.collectives(rank), tells=tells)
        self._counts = False
        # Opened when the script has joined; another rank of the node may have it.
        self._link = ranks.link if context.place.local_rank == 0 else None
        self._judge_waiting = judge_waiting
        self._only_watching = only_watching
        self._progress = context.progress
        self._breakers = context.breakers
        self._warn = context.warn

    def joined(self, world_size: int) -> None:
        """Called in the training's process after it joined a group of more than one rank."""
        with self._breakers("several ranks"):
            if world_size <= self._place.world_size:
                if not self._counts:
                    self._counts = True
                    self._collectives.start()
                if self._link is not None:
                    store = torch.distributed.distributed_c10d._get_default_store()
                    self._link.open(store, os.environ["MASTER_ADDR"])
                return
            if self._only_watching.has_begun:
                return
            self._judge_waiting()
            step = self._progress.steps_done
            found = StateFound(step=step, found=Found.SEVERAL_RANKS, world_size=world_size)
            self._warn.write(found)
            self._only_watching.start(
                f"{world_size} ranks that the supervisor did not start: this one is only watched: "
                "nothing is treated or saved, and after a failure all ranks have to be started "
                "again, from the script's own checkpoints: start them with "
                f"`supervisor run --nproc-per-node {world_size}` instead"
            )

    def joined_in_child(self, world_size: int, rank: int) -> None:
        """Called in a forked child after it joined a group: one rank says it for all."""
        if rank == FIRST_RANK:
            print(f"supervisor: warning: {_not_supervised(world_size)}", file=sys.stderr)

    def started(self, processes: int) -> None:
        """Called in the training's process before it starts others by torch.multiprocessing."""
        with self._breakers("several ranks"):
            self._warn(_not_supervised(processes), aloud=True)


def _not_supervised(processes: int) -> str:
    what = f"{processes} processes" if processes != 1 else "a process"
    return (
        f"{what} of the script's own (torch.multiprocessing): what is trained there is not "
        "supervised: use `supervisor run --nproc-per-node` where the script can be started so"
    )
