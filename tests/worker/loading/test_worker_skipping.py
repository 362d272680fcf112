"""Which batches of workers are left out, by what the replay log says."""

from __future__ import annotations

from pathlib import Path

import torch

from supervisor.storage.steps.replay_log import EntryKind, ReplayLogWriter
from supervisor.storage.steps.replay_log_reader import ReplayLogReader
from supervisor.worker.loading.loader_skipping import NEAR_STEPS, pack_mark
from supervisor.worker.loading.worker_proof import WorkerMark, pack_iteration
from supervisor.worker.loading.worker_skipping import WorkerPlan, plans

EPOCH = 20
WORKERS = 2


def _plans(
    tmp_path: Path,
    steps: int,
    *,
    persistent: bool,
    verified: int = 10**6,
    given_up_at: int = -1,
    allowed: tuple[int, ...] = (0,),
) -> dict[int, WorkerPlan]:
    """Plans for a run with one batch a step; the last batch of an epoch has a shape of its own."""
    replay_log = ReplayLogWriter(tmp_path / "tape")
    for step in range(steps):
        epoch, place = divmod(step, EPOCH)
        mark = WorkerMark(
            iteration=0 if persistent else epoch,
            place=step if persistent else place,
            worker=place % WORKERS,
            is_verified=step <= verified,
            is_given_up=step == given_up_at,
            proof=0,
            drawn=b"",
            fetch=pack_mark([step], torch.zeros(3 if place == EPOCH - 1 else 4)),
        )
        replay_log.append(EntryKind.WORKER_BATCH, mark.pack())
        replay_log.append_step(step, 0.1, 1, 1, 0)
        if place == EPOCH - 1 and not persistent:
            replay_log.append(EntryKind.EPOCH_END, pack_iteration(epoch))
    end = replay_log.write_out()
    replay_log.close()
    return plans(ReplayLogReader(tmp_path / "tape", end=end), steps, allowed)


def _loaded(plan: WorkerPlan, until: int) -> list[int]:
    return [place for place in range(until) if not plan.leaves_out(place)]


def test_of_persistent_workers_the_last_and_the_first_of_each_shape_are_loaded(
    tmp_path: Path,
) -> None:
    plan = _plans(tmp_path, 70, persistent=True)[0]

    assert _loaded(plan, 70) == [0, EPOCH - 1, *range(70 - NEAR_STEPS, 70)]
    assert not plan.is_whole


def test_epochs_that_ended_early_need_no_workers(tmp_path: Path) -> None:
    found = _plans(tmp_path, 70, persistent=False)

    assert [plan.is_whole for plan in found.values()] == [False, True, True, False]
    assert _loaded(found[0], EPOCH) == [0, EPOCH - 1]
    assert _loaded(found[3], 10) == [2, 3, 4, 5, 6, 7, 8, 9]


def test_what_was_not_verified_is_loaded(tmp_path: Path) -> None:
    plan = _plans(tmp_path, 70, persistent=True, verified=30)[0]

    assert _loaded(plan, 70) == [0, EPOCH - 1, *range(31, 70)]


def test_nothing_is_left_out_of_what_was_given_up_or_not_promised(tmp_path: Path) -> None:
    given_up = _plans(tmp_path, 70, persistent=True, given_up_at=60)[0]

    assert _loaded(given_up, 70) == list(range(70))
    assert _plans(tmp_path, 70, persistent=True, allowed=()) == {}
