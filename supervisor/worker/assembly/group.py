"""What several ranks agree by, and what is left where they cannot."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.held_memory import HeldMemory
from supervisor.storage.run.rank_board import RankBoard
from supervisor.storage.run.rank_notes import RankNotes
from supervisor.training_state.snapshot import SnapshotRing
from supervisor.worker.assembly.ground import Ground, Task
from supervisor.worker.ground.turns import GroupTurns
from supervisor.worker.group.agreement import Agreement, GroupAgreement
from supervisor.worker.group.exchanges import Exchanges
from supervisor.worker.group.group_schedule import GroupSchedule
from supervisor.worker.group.node_link import NodeLink
from supervisor.worker.group.nodes_board import Board, NodesBoard
from supervisor.worker.group.only_watching import OnlyWatching
from supervisor.worker.group.waiting_ranks import WaitingRanks
from supervisor.worker.live.checkpoint_listener import CheckpointListener
from supervisor.worker.live.parting_checkpoint import PartingCheckpoint
from supervisor.worker.live.snapshot_listener import SnapshotListener


@dataclass(frozen=True)
class Group:
    """One rank alone agrees with itself.

    Attributes:
        link: to the other nodes, of the first rank of each node; else None.
        waiting: leaves a note of what this rank exchanges; None if it is alone.
    """

    agreement: Agreement
    only_watching: OnlyWatching
    link: NodeLink | None = None
    waiting: WaitingRanks | None = None


def build_group(task: Task, ground: Ground, snapshots: SnapshotRing, memory: HeldMemory) -> Group:
    place, schedule, turns, warn = task.place, ground.schedule, ground.turns, ground.warn
    only_watching = OnlyWatching(
        policy=task.policy,
        snapshots=snapshots,
        saving=(SnapshotListener.name, CheckpointListener.name, PartingCheckpoint.name),
        barrier=ground.barrier,
        warn=warn,
    )
    if not (isinstance(schedule, GroupSchedule) and isinstance(turns, GroupTurns)):
        return Group(Agreement(), only_watching)

    waiting = _build_waiting(task, ground.exchanges)

    def lost() -> None:
        why = "the ranks do not make the same steps"
        if waiting.found is not None:
            other = place.rank - place.local_rank + waiting.found
            why += f" (rank {other} waits for what rank {place.rank} exchanges behind its update)"
        elif board.was_left:
            why = "another rank makes no more steps with this one"
        only_watching.begin(
            f"{why}: from here on this one is only watched: nothing is treated or saved"
        )

    def split(step: int) -> None:
        why = f"the ranks have decided differently before step {step}"
        warn(f"{why}: all begin again from the last checkpoint", aloud=place.leads)
        schedule.ask_for_restart(why)

    link = NodeLink(place.node, place.nodes) if place.nodes > 1 else None
    board = _build_board(task, link)
    agreement = GroupAgreement(
        board,
        schedule,
        turns,
        ground.progress,
        ground.exchanges,
        waiting,
        memory,
        rank=place.rank,
        on_lost=lost,
        on_split=split,
    )
    return Group(agreement, only_watching, link if place.local_rank == 0 else None, waiting)


def _build_board(task: Task, link: NodeLink | None) -> Board:
    place = task.place
    path = task.rundir.board(task.attempt, place.node)
    if link is None:
        return RankBoard(path, place.local_rank, place.local_world_size)
    return NodesBoard(path, place, link)


def _build_waiting(task: Task, exchanges: Exchanges) -> WaitingRanks:
    place = task.place
    path = task.rundir.rank_notes(task.attempt, place.node)
    return WaitingRanks(RankNotes(path, place.local_rank, place.local_world_size), exchanges)
