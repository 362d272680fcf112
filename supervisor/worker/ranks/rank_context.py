"""How ranks enter: which one this is, and how all of them come to do the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from supervisor.held_memory import HeldMemory
from supervisor.ranks import RankPlace
from supervisor.storage.run.mailboxes import RankStatus
from supervisor.worker.core.boundaries import BoundarySchedule, GroupTurns
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.healing.collectives import Collectives
from supervisor.worker.ranks.agreement import (
    Agreement,
    GroupAgreement,
    GroupSchedule,
    is_same_step,
)
from supervisor.worker.ranks.exchanges import Exchanges
from supervisor.worker.ranks.kept_mailbox import KeptMailbox, collectives_of
from supervisor.worker.ranks.nodes_mailbox import NodeLink, mailbox_of
from supervisor.worker.ranks.waiting_ranks import WaitingRanks


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """A training in one process has one, too: it agrees with itself.

    Attributes:
        place: of this rank among all.
        agreement: by which ranks judge one record and arrive together.
        schedule: of boundaries; that of several ranks waits for what all have agreed on.
        waiting: knows of ranks that cannot come to this one's update; None for one process.
        link: to the other nodes; None if there are none.
        collectives: of a rank that may come back alone; None where all are started again.
    """

    place: RankPlace
    agreement: Agreement
    schedule: BoundarySchedule
    waiting: WaitingRanks | None = None
    link: NodeLink | None = None
    collectives: Collectives | None = None

    @classmethod
    def of(
        cls,
        context: WorkerContext,
        exchanges: Exchanges,
        memory: HeldMemory,
        only_watch: Callable[[str], None],
    ) -> RankContext:
        """`only_watch`: called with the reason once the ranks make no more steps together."""
        place, schedule, turns = context.place, context.schedule, context.turns
        if not isinstance(schedule, GroupSchedule) or not isinstance(turns, GroupTurns):
            return cls(place=place, agreement=Agreement(), schedule=schedule)
        notes = context.rundir.rank_notes(context.attempt, place.node)
        waiting = WaitingRanks(
            RankStatus(notes, place.local_rank, place.local_world_size), exchanges
        )
        link = NodeLink(place.node, place.nodes) if place.nodes > 1 else None
        path, collectives = context.rundir.mailbox(context.attempt, place.node), None
        if link is None:
            collectives = collectives_of(context)
        if collectives is None:
            mailbox = mailbox_of(path, place, link)
        else:
            local, ranks = place.local_rank, place.local_world_size
            mailbox = KeptMailbox(path, local, ranks, collectives, is_same_step)
        warn = context.warn

        def lost() -> None:
            why = "the ranks do not make the same steps"
            if waiting.found is not None:
                other = place.rank - place.local_rank + waiting.found
                what = f"what rank {place.rank} exchanges behind its update"
                why += f" (rank {other} waits for {what})"
            elif mailbox.was_left:
                why = "another rank makes no more steps with this one"
            only_watch(f"{why}: from here on this one is only watched: nothing is treated or saved")

        def split(step: int) -> None:
            why = f"the ranks have decided differently before step {step}"
            warn(f"{why}: all begin again from the last checkpoint", aloud=place.is_first_rank)
            schedule.ask_for_restart(why)

        agreement = GroupAgreement(
            mailbox,
            schedule,
            turns,
            context.progress,
            waiting,
            memory,
            on_lost=lost,
            on_split=split,
        )
        return cls(
            place=place,
            agreement=agreement,
            schedule=schedule,
            waiting=waiting,
            link=link,
            collectives=collectives,
        )
