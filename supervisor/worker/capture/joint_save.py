"""Saves the states of all ranks from one process, when the ranks themselves are dead."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from supervisor.ranks import LEAD_RANK
from supervisor.storage.checkpoints.checkpoints import Checkpoint, CheckpointRing
from supervisor.storage.checkpoints.parts import RANKS, rank_folder
from supervisor.training_state.replicated import tensor_digests, without_replicated
from supervisor.training_state.snapshot import state_bytes
from supervisor.worker.capture.checkpoint_writer import CapturedCheckpoint
from supervisor.worker.capture.single_writer import fill, with_digest
from supervisor.worker.group.exchanges import check_same_place


def save_jointly(ring: CheckpointRing, parts: Mapping[int, CapturedCheckpoint]) -> Checkpoint:
    """Returns a checkpoint as `LeadWriter` and the `FollowerWriter` of each other rank write it.

    What they refer to (tapes) is on disk already.

    Args:
        ring: of the run.
        parts: rank → its state, all of one step; all ranks of the training.

    Raises:
        StateNotFinite: one of them is not finite; nothing is written.
        CheckpointError: the disk refuses, or they do not belong together.
    """
    check_same_place({rank: captured.meta for rank, captured in parts.items()})
    first = parts[LEAD_RANK]
    metas = {rank: with_digest(captured) for rank, captured in parts.items()}
    others = {str(rank): meta for rank, meta in metas.items() if rank != LEAD_RANK}
    digests = tensor_digests(first.state) if others else {}

    def write(folder: Path) -> None:
        if not others:
            return fill(folder, first)
        for rank, captured in sorted(parts.items()):
            own, state = folder / rank_folder(rank), captured.state
            ring.disk.make_folder(own)
            if rank != LEAD_RANK:
                state = without_replicated(state, digests)
            fill(own, dataclasses.replace(captured, state=state))

        return None

    return ring.save(
        first.step,
        write,
        reason=first.reason,
        meta={**metas[LEAD_RANK], **({RANKS: others} if others else {})},
        estimated_bytes=sum(state_bytes(captured.state) for captured in parts.values()),
    )
