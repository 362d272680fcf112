"""Reads the states of ranks out of a checkpoint."""

from __future__ import annotations

from typing import Any

from supervisor.errors import CheckpointDamaged
from supervisor.ranks import LEAD_RANK, RankPlace
from supervisor.storage.checkpoints.checkpoints import Checkpoint
from supervisor.storage.checkpoints.parts import part_of, ranks_of
from supervisor.training_state.codec import read_state
from supervisor.training_state.replicated import with_replicated
from supervisor.training_state.state import digest


def read_rank_state(checkpoint: Checkpoint, place: RankPlace) -> dict[str, Any]:
    """Returns the state of the rank at `place`, with what it shares with the first rank.

    Raises:
        CheckpointError: it cannot be read, or another number of ranks has saved it.
    """
    part = part_of(checkpoint, place.rank, place.world_size)
    state = read_state(part.path)
    if not place.leads:
        first = read_state(part_of(checkpoint, LEAD_RANK, place.world_size).path)
        state = with_replicated(state, first)
    return state


def read_all_ranks(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """Returns the states of all ranks that saved a checkpoint, in their order, each checked.

    Raises:
        CheckpointError: one of them cannot be read.
        CheckpointDamaged: one is not what was copied.
    """
    count = ranks_of(checkpoint)
    states = []
    for rank in range(count):
        place = RankPlace(rank=rank, world_size=count)
        states.append(read_rank_state(checkpoint, place))
        check_digest(part_of(checkpoint, rank, count), states[-1])
    return states


def check_digest(part: Checkpoint, state: dict[str, Any]) -> None:
    """Checks that what was read is what lay in memory when the checkpoint was made.

    Raises:
        CheckpointDamaged: it changed before it was written, as in a faulty memory.
    """
    stated = part.meta.get("digest")
    if stated is not None and digest(state) != stated:
        raise CheckpointDamaged(
            f"{part.path}: its state is not the one that was copied: use an older checkpoint, and "
            "check this machine's memory"
        )
