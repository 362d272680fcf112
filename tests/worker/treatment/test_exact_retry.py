"""When a retry is asked for, and what it proves."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.ranks import RankPlace
from supervisor.records import Cause, Decision, StepRecord, WorkerOrder
from supervisor.settings import PolicySettings, RunSettings
from supervisor.storage.checkpoints.checkpoints import Checkpoint
from supervisor.storage.journal.journal import Journal
from supervisor.storage.steps.flight_recorder import FlightRecorder
from supervisor.worker.core.boundaries import BoundarySchedule, CheckRequests
from supervisor.worker.core.part import Arrived
from supervisor.worker.core.progress import Progress, RunWarnings
from supervisor.worker.core.run_health import MAX_WAITING
from supervisor.worker.core.step_probe import StepProbe
from supervisor.worker.treatment.exact_retry import MOST, ExactRetry

START, UNTIL = 30, 42
ORDER = WorkerOrder(attempt=1)
RETRY = WorkerOrder(attempt=2, retry_until=UNTIL, retry_of=1, retries=1)
DECISION = Decision(step=UNTIL, actions=("rollback",), cause=Cause.SPIKE, onset_step=41)


class Attempt:
    """One attempt's steps in the flight recorder, and its `ExactRetry`."""

    def __init__(self, folder: Path, order: WorkerOrder = ORDER, **changes: Any) -> None:
        self.folder = folder
        self.schedule = BoundarySchedule()
        self.journal = Journal(folder / "events.jsonl", attempt=order.attempt, rank=0)
        self.recorder = FlightRecorder(folder / "steps", order.attempt)
        self.runner: Any = SimpleNamespace(changed_at=-1)
        self.ring: Any = SimpleNamespace(checkpoints=lambda: [checkpoint(20), checkpoint(START)])
        given: dict[str, Any] = {"is_possible": True, "exact_retry": True, **changes}
        context: Any = SimpleNamespace(
            policy=PolicySettings(exact_retry=given["exact_retry"]),
            order=order,
            place=RankPlace(),
            is_experiment=not given["is_possible"],
            settings=RunSettings(),
            warn=RunWarnings(self.journal, Progress(StepProbe())),
        )
        looks = CheckRequests(self.schedule)
        self.retry = ExactRetry(context, self.ring, self.recorder, looks, self.runner)

    def make(self, losses: Sequence[float], first: int = START, signature: int = 7) -> None:
        for step, loss in enumerate(losses, first):
            record = StepRecord(step=step, loss=loss, loss_seen=True, grad_norm=loss / 2)
            self.recorder.append(record, time=0.0, batch_signature=signature)

    def said(self) -> list[str]:
        lines = (self.folder / "events.jsonl").read_text().splitlines()
        return [event["found"] for event in map(json.loads, lines) if event.get("found")]


def checkpoint(step: int, **meta: Any) -> Checkpoint:
    meta = {"tape_offset": 5, **meta}
    return Checkpoint(step=step, path=Path(), reason="", time=0.0, meta=meta, abandoned=False)


def test_a_costly_treatment_is_put_off_until_the_same_steps_were_computed_again(
    tmp_path: Path,
) -> None:
    attempt = Attempt(tmp_path)

    done = attempt.retry.instead(DECISION)

    assert done.actions == ()
    assert attempt.schedule.leave is not None
    assert attempt.schedule.leave[0] == "retry"
    assert attempt.said() == ["exact retry asked"]


def test_the_checkpoint_lies_well_before_the_trouble(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)

    attempt.retry.instead(replace(DECISION, onset_step=39))

    assert json.loads((tmp_path / "events.jsonl").read_text())["before_step"] == 20


def no_checkpoint(attempt: Attempt) -> None:
    attempt.ring.checkpoints = lambda: [checkpoint(40)]


def no_tape(attempt: Attempt) -> None:
    attempt.ring.checkpoints = lambda: [checkpoint(START, tape_lost="budget")]


def rolled_back(attempt: Attempt) -> None:
    attempt.runner.changed_at = START + 1


@pytest.mark.parametrize("kind", [no_checkpoint, no_tape, rolled_back])
def test_a_retry_that_could_prove_nothing_is_not_asked_for(
    tmp_path: Path, kind: Callable[[Attempt], None]
) -> None:
    attempt = Attempt(tmp_path)
    kind(attempt)

    assert attempt.retry.instead(DECISION) is DECISION
    assert attempt.schedule.leave is None


@pytest.mark.parametrize(
    ("order", "changes"),
    [
        (ORDER, {"exact_retry": False}),
        (ORDER, {"is_possible": False}),
        (replace(ORDER, retries=MOST), {}),
        (replace(ORDER, lr_factor=0.5), {}),
    ],
    ids=["not in the policy", "several ranks", "too many", "careful"],
)
def test_nor_where_it_is_not_wanted(
    tmp_path: Path, order: WorkerOrder, changes: dict[str, Any]
) -> None:
    assert Attempt(tmp_path, order, **changes).retry.instead(DECISION) is DECISION


@pytest.mark.parametrize("actions", [("skip_update",), ("cut_lr", "tighten_clip"), ("checkpoint",)])
def test_what_costs_no_steps_is_done_at_once(tmp_path: Path, actions: tuple[str, ...]) -> None:
    decision = replace(DECISION, actions=actions)

    assert Attempt(tmp_path).retry.instead(decision) is decision


LOSSES = [1.0 - 0.01 * step for step in range(11)] + [5.0, math.nan]


def retried(
    folder: Path, losses: Sequence[float], *, signature: int = 7, is_exact: bool = True
) -> Attempt:
    first = Attempt(folder)
    first.make([0.0] * START, first=0)
    first.make(LOSSES)
    first.recorder.close()
    second = Attempt(folder, RETRY)
    meta = {"steps_recorded": START}
    second.retry.goes_live(Arrived(step=START, path=Path(), state={}, meta=meta, is_exact=is_exact))
    second.make(losses, signature=signature)
    return second


def test_the_same_numbers_again_are_no_fault_of_the_machine(tmp_path: Path) -> None:
    second = retried(tmp_path, LOSSES)

    assert second.retry.instead(DECISION) is DECISION
    assert second.said() == ["exact retry repeated"]
    assert second.schedule.leave is None


def test_other_numbers_and_no_trouble_are_the_machines_fault(tmp_path: Path) -> None:
    second = retried(tmp_path, [*LOSSES[:11], 0.8, 0.8])

    second.retry.at_boundary(UNTIL + MAX_WAITING)
    before = (tmp_path / "events.jsonl").exists()
    second.retry.at_boundary(UNTIL + MAX_WAITING + 1)
    second.retry.at_boundary(UNTIL + MAX_WAITING + 2)

    assert not before
    assert second.said() == ["suspect hardware"]


@pytest.mark.parametrize(
    ("losses", "changes"),
    [
        ([0.9] * 13, {}),
        ([*LOSSES[:2], *[0.9] * 11], {}),
        ([*LOSSES[:11], 0.8, 0.8], {"signature": 8}),
        ([*LOSSES[:11], 0.8, 0.8], {"is_exact": False}),
        (LOSSES[:5], {}),
        (LOSSES, {}),
    ],
    ids=["never the same", "hardly", "other data", "approximate", "not all", "untreated"],
)
def test_hardware_is_never_blamed_without_proof(
    tmp_path: Path, losses: Sequence[float], changes: dict[str, Any]
) -> None:
    second = retried(tmp_path, losses, **changes)

    second.retry.at_boundary(UNTIL + MAX_WAITING + 1)

    assert second.said() == ["exact retry undecided"]


def test_trouble_that_comes_again_with_other_numbers_is_treated(tmp_path: Path) -> None:
    second = retried(tmp_path, [*LOSSES[:11], 6.0, math.nan])

    assert second.retry.instead(DECISION) is DECISION
    assert second.said() == ["exact retry undecided"]
