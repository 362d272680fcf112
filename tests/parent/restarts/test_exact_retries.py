from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from supervisor.codes import ExitSign, Found
from supervisor.events.state_events import StateFound
from supervisor.parent.restarts.exact_retries import ExactRetries
from supervisor.records import ExitCause, WorkerExit, WorkerOrder
from supervisor.storage.checkpoints.checkpoints import Checkpoint

FIRST = WorkerOrder(attempt=1)
RETRY = WorkerExit(cause=ExitCause.NONFINITE, sign=ExitSign.EXACT_RETRY)


@dataclass
class Ring:
    steps: list[int] = field(default_factory=lambda: [10, 20, 30])

    def newest_verified(self, before_step: int | None = None) -> Checkpoint | None:
        fitting = [step for step in self.steps if before_step is None or step < before_step]
        return _checkpoint(fitting[-1]) if fitting else None

    def last_stable(self, before_step: int | None = None) -> Checkpoint | None:
        raise AssertionError("a retry does not ask what is stable")

    def get(self, step: int) -> Checkpoint:
        raise AssertionError("it takes what verifies")


def _checkpoint(step: int) -> Checkpoint:
    return Checkpoint(step=step, path=Path(), reason="", time=0.0, meta={}, abandoned=False)


def asked() -> ExactRetries:
    retries = ExactRetries()
    retries.saw([StateFound(step=42, found=Found.RETRY_ASKED, before_step=20)])
    return retries


def test_a_retry_begins_at_the_checkpoint_that_the_worker_chose() -> None:
    order = asked().order(FIRST, RETRY, Ring())

    assert order is not None
    assert (order.attempt, order.checkpoint_step) == (2, 20)
    assert (order.retry_until, order.retry_of, order.retries) == (42, 1, 1)
    assert (order.lr_factor, order.careful_steps) == (1.0, 0)


def test_a_damaged_checkpoint_is_replaced_by_an_older_one() -> None:
    order = asked().order(FIRST, RETRY, Ring([10, 30]))

    assert order is not None
    assert order.checkpoint_step == 10


def test_another_end_is_no_retry_and_uses_the_wish_up() -> None:
    retries = asked()

    assert retries.order(FIRST, WorkerExit(cause=ExitCause.KILLED), Ring()) is None
    assert retries.order(FIRST, RETRY, Ring()) is None


def test_without_a_checkpoint_there_is_no_retry() -> None:
    assert asked().order(FIRST, RETRY, Ring([])) is None
