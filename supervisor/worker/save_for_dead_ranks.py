"""Makes a checkpoint of what the ranks of a failed attempt kept in memory, each at the same step.

Started by the parent alone, when a rank has failed; it is told the step on standard input when none
lives any more, while the parent's memory still holds their states. Prints one JSON object:
``step``, ``path``, ``bytes`` and ``seconds``, or ``problem``.

Saves the states of all ranks from one process, when the ranks themselves are dead.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from supervisor.config import load_resolved_config
from supervisor.errors import CheckpointError, SupervisorError
from supervisor.ranks import FIRST_RANK
from supervisor.storage.checkpoints.checkpoints import Checkpoint, CheckpointRing
from supervisor.storage.checkpoints.parts import RANKS, rank_folder
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.script_files.script_files import ScriptFiles
from supervisor.training_state.replicas import tensor_digests, without_replicated
from supervisor.training_state.snapshot import state_bytes
from supervisor.worker.checkpoints.checkpoint_writer import CapturedCheckpoint, fill, with_digest
from supervisor.worker.checkpoints.rank_memory import KEPT_BEGAN, KEPT_INTERVAL, kept_at
from supervisor.worker.ranks.exchanges import check_same_place


def save_jointly(ring: CheckpointRing, parts: Mapping[int, CapturedCheckpoint]) -> Checkpoint:
    """Returns a checkpoint as `FirstRankWriter` and the `OtherRankWriter` of each other rank write
    it.

    What they refer to (replay logs) is on disk already.

    Args:
        ring: of the run.
        parts: rank → its state, all of one step; all ranks of the training.

    Raises:
        StateNotFinite: one of them is not finite; nothing is written.
        CheckpointError: the disk refuses, or they do not belong together.
    """
    check_same_place({rank: captured.meta for rank, captured in parts.items()})
    first = parts[FIRST_RANK]
    metas = {rank: with_digest(captured) for rank, captured in parts.items()}
    others = {str(rank): meta for rank, meta in metas.items() if rank != FIRST_RANK}
    digests = tensor_digests(first.state) if others else {}

    def write(folder: Path) -> None:
        if not others:
            return fill(folder, first)
        for rank, captured in sorted(parts.items()):
            own, state = folder / rank_folder(rank), captured.state
            ring.disk.make_folder(own)
            if rank != FIRST_RANK:
                state = without_replicated(state, digests)
            fill(own, dataclasses.replace(captured, state=state))

        return None

    return ring.save(
        first.step,
        write,
        reason=first.reason,
        meta={**metas[FIRST_RANK], **({RANKS: others} if others else {})},
        estimated_bytes=sum(state_bytes(captured.state) for captured in parts.values()),
    )


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0 whether something was saved or not.

    Args:
        arguments: one JSON object: ``run_dir``, and ``places``: local rank → paths.
    """
    order = json.loads(arguments[0])
    line = sys.stdin.readline()
    if not line:
        return 0  # nothing is to be saved
    started = time.perf_counter()
    told: dict[str, Any]
    try:
        saved = save_for_dead(RunDirectory(order["run_dir"]), int(line), order["places"])
        told = {"step": saved.step, "path": saved.path.name, "bytes": saved.bytes}
        told["seconds"] = time.perf_counter() - started
    except (SupervisorError, OSError) as error:
        told = {"problem": str(error)}
    print(json.dumps(told), flush=True)
    return 0


def save_for_dead(rundir: RunDirectory, step: int, places: dict[str, list[str]]) -> Checkpoint:
    """Returns the checkpoint of `step`.

    Raises:
        CheckpointError: a rank's state is missing, or the disk refuses.
        StateNotFinite: a state is not finite.
        OSError: a replay log or a record of files cannot be completed.
    """
    parts: dict[int, CapturedCheckpoint] = {}
    for local_rank, paths in places.items():
        found = kept_at(paths, step)
        if found is None:
            raise CheckpointError(f"local rank {local_rank} has kept no state of step {step}")
        place, captured = found
        if place.world_size != len(places):
            raise CheckpointError(
                f"{place.world_size} ranks train, and {len(places)} of them on this node: what the "
                "others kept is in another node's memory"
            )
        parts[place.rank] = captured
    if sorted(parts) != list(range(len(places))):
        raise CheckpointError(f"states of ranks {sorted(parts)} were kept, of {len(places)} ranks")
    for rank, captured in parts.items():
        parts[rank] = _completed(rundir, rank, captured)
    ring = CheckpointRing(rundir.checkpoints, load_resolved_config(rundir.config_yaml).checkpoint)
    return save_jointly(ring, parts)


def _completed(rundir: RunDirectory, rank: int, captured: CapturedCheckpoint) -> CapturedCheckpoint:
    """Makes durable what the state refers to, as its rank would have done."""
    meta = dict(captured.meta)
    _sync(rundir, rank, int(str(meta["tape_offset"])))
    interval, began = int(str(meta[KEPT_INTERVAL])), float(str(meta.pop(KEPT_BEGAN)))
    ScriptFiles(rundir, rank).begin_afterwards(interval, began)
    return dataclasses.replace(captured, meta=meta)


def _sync(rundir: RunDirectory, rank: int, offset: int) -> None:
    descriptor = os.open(rundir.replay_log(rank), os.O_RDONLY)
    try:
        if os.fstat(descriptor).st_size < offset:
            raise CheckpointError(f"rank {rank}: its tape is shorter than its state tells")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
