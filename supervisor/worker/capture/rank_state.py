"""Reads one rank's state out of a checkpoint."""

from __future__ import annotations

from typing import Any

from supervisor.ranks import LEAD_RANK, RankPlace
from supervisor.storage.checkpoints.checkpoints import Checkpoint
from supervisor.storage.checkpoints.parts import part_of
from supervisor.training_state.codec import read_state
from supervisor.training_state.replicated import with_replicated


def read_rank_state(checkpoint: Checkpoint, place: RankPlace) -> dict[str, Any]:
    """Returns the state of the rank at `place`, with what it shares with the first rank.

    Raises:
        CheckpointError: it cannot be read, or another number of ranks has saved it.
    """
    state = read_state(part_of(checkpoint, place.rank, place.world_size).path)
    if place.leads:
        return state
    return with_replicated(state, read_state(part_of(checkpoint, LEAD_RANK, place.world_size).path))
