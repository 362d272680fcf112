"""Which of several ranks began the end of an attempt."""

from __future__ import annotations

import math
import signal
from collections.abc import Sequence
from dataclasses import replace

from supervisor.parent.restarts import failure_signs
from supervisor.parent.restarts.exits import ProcessEnding, classify
from supervisor.parent.watching.collective_records import SilentRank, find_hanging_rank
from supervisor.records import ExitCause, WorkerExit


def judge_group(endings: Sequence[ProcessEnding]) -> WorkerExit:
    """Returns why an attempt ended, from the endings of all its ranks.

    It has completed if all have. Otherwise one rank began it: one that a signal or the kernel
    ended without a word, before one that failed by itself, before those that tell of a peer that
    has gone, before those that we ended ourselves. Among equals it is the one that failed first.
    Where ranks have only waited for others for too long, it is the one that they waited for.

    Args:
        endings: at least one; one for each rank.
    """
    exits = [(ending, classify(ending)) for ending in endings]
    failed = [found for found in exits if found[1].cause is not ExitCause.COMPLETED]
    ending, cause = min(failed or exits, key=_order_of_blame)
    if len(endings) == 1 or not failed:
        return cause
    if cause.cause is ExitCause.HANG and not ending.hang:
        return _awaited(endings, ending, cause)
    if ending.lost and ending.note is None:  # with all of its node: no rank began it
        return cause
    told = f"rank {ending.rank} ended first of {len(endings)}"
    following = tuple(each.rank for each in endings if each is not ending and _tells_of_peer(each))
    evidence = (*cause.evidence, told)
    return replace(cause, evidence=evidence, rank=ending.rank, following=following)


def _awaited(
    endings: Sequence[ProcessEnding], waited: ProcessEnding, cause: WorkerExit
) -> WorkerExit:
    ranks = [each.seen or SilentRank(rank=each.rank, last_step=each.last_step) for each in endings]
    rank, why = find_hanging_rank(ranks)
    frames = next(each.frames for each in ranks if each.rank == rank)
    stood = [f"rank {rank} was in {frame}" for frame in frames[:1]]
    told = f"rank {waited.rank} waited for too long: {why}"
    return replace(cause, evidence=(told, *stood, *cause.evidence), rank=rank)


def _order_of_blame(found: tuple[ProcessEnding, WorkerExit]) -> tuple[int, float, int]:
    """Sorts endings by how likely they are to be the cause of the others."""
    ending, worker_exit = found
    note = ending.note
    is_peer = _tells_of_peer(ending)
    if note is None or note.kind == "own_signal":
        asked = ending.signum == signal.SIGTERM or ending.signum in ending.signals_sent
        is_ours = asked and worker_exit.cause is ExitCause.KILLED
        kind = 3 if is_ours else 2 if is_peer else 0
    elif note.kind == "completed" and ending.is_cut_off:
        kind = 3  # its training was over
    else:
        kind = 2 if note.kind == "exception" and is_peer else 1
    return kind, note.time if note is not None else math.inf, ending.rank


def _tells_of_peer(ending: ProcessEnding) -> bool:
    return failure_signs.outside_fault(ending.last_words) == failure_signs.ANOTHER_RANK
