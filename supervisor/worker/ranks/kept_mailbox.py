"""The mailbox of ranks of which one may come back alone: what they tell each other is kept, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from supervisor.storage.run import healing_memory
from supervisor.storage.run.healing_memory import HealingMailbox
from supervisor.storage.run.mailboxes import StepMailbox
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.healing.collectives import MOST_COST, Collectives
from supervisor.worker.healing.collectives_log import CollectivesLog
from supervisor.worker.healing.links import problem_here
from supervisor.worker.healing.patches_groups import route_collectives
from supervisor.worker.ranks.sequence_numbers import SequenceNumbers


class KeptMailbox(StepMailbox):
    """As `StepMailbox`; a rank that catches up is told what its rank was told.

    Args:
        collectives: keep the messages.
        is_same: whether two messages of a rank tell of the same training.
    """

    def __init__(
        self,
        path: Path,
        rank: int,
        ranks: int,
        collectives: Collectives,
        is_same: Callable[[bytes, bytes], bool],
    ) -> None:
        super().__init__(path, rank, ranks)
        self._collectives = collectives
        self._is_same = is_same
        self.may_still_come = collectives.look

    def exchange(
        self,
        message: bytes,
        timeout_s: float | None = None,
        is_in_vain: Callable[[], bool] | None = None,
    ) -> list[bytes] | None:
        own, told = self._collectives.recorded_message(message, self._is_same)
        if told is not None:
            self.skip_to(self.count + 1)
            return told
        told = super().exchange(own, timeout_s, is_in_vain)
        if told is not None:
            self._collectives.message_ended(told)
        return told


def collectives_of(context: WorkerContext) -> Collectives | None:
    """Returns what makes, keeps and answers this process's collectives; None where all ranks are
    started again if one dies. Called once, before the script makes a group."""
    own, progress, place = healing_memory.mine, context.progress, context.place
    if own is None:
        return None
    is_auto = context.settings.restart.healing == "auto"
    try:
        mailbox = HealingMailbox(own.mailbox)
        collectives = Collectives(
            mailbox,
            lambda rank: [CollectivesLog(path) for path in own.logs[rank]],
            place.rank,
            place.world_size,
            context.call_state,
            heals=own.is_healing,
            steps_done=lambda: progress.steps_done,
            most_cost=MOST_COST if is_auto else None,
        )
    except OSError as error:
        context.warn(f"healing is off: {error}")
        return None
    why = problem_here()
    if why or not route_collectives(collectives.handle):
        why = why or "this torch has no gloo"
        mailbox.object_to(place.rank, why)
        return None
    SequenceNumbers.called = collectives.called
    collectives.start()
    return collectives
