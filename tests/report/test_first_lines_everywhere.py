"""The terminal's end, `watch`, the live page and the report begin with the same four lines."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisor.cli.serve.run_feed import RunFeed
from supervisor.cli.watch.read_run import RunView
from supervisor.parent.terminal.outcome import Outcome
from supervisor.parent.terminal.summary import closing_lines
from supervisor.report.gathering import gather
from supervisor.storage.journal.events import read_journal
from tests.report.synthetic_run import SyntheticRun


def told_by_all(run: SyntheticRun) -> set[tuple[str, ...]]:
    root = run.rundir.root
    report = gather(root).first_lines
    return {
        tuple(RunView(run.rundir).look().first_lines),
        tuple(RunFeed(run.rundir).state()["first_lines"]),
        tuple(report),
    }


def said_at_the_end(run: SyntheticRun, state: str, reason: str, step: int) -> tuple[str, ...]:
    lines = closing_lines(
        Outcome(state=state, exit_code=75, reason=reason),
        run.rundir.root,
        read_journal(run.rundir.journal),
        last_step=step,
        report=None,
        shortfalls=gather(run.rundir.root).shortfalls,
    )
    return (*lines[:3], lines[-1])


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    state=st.sampled_from(["completed", "gave_up", "interrupted", "failed"]),
    ends=st.lists(st.integers(5, 30), min_size=1, max_size=3),
    exact=st.booleans(),
    treated=st.booleans(),
    far_up=st.booleans(),
)
def test_all_four_say_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    state: str,
    ends: list[int],
    exact: bool,
    treated: bool,
    far_up: bool,
) -> None:
    run = SyntheticRun(tmp_path_factory.mktemp("run") / "a")
    run.start(1)
    run.steps(0, ends[0])
    for attempt, more in enumerate(ends[1:], start=2):  # may end before where another one was
        run.exit("killed", ends[attempt - 2])
        run.attempt = attempt
        run.event("attempt_started", step=3, checkpoint_step=3)
        how = "exact" if exact else "approximate"
        run.event("resumed", step=3, from_step=3, exactness=how, reason="as recorded.")
        run.steps(4, more)
    last = ends[-1]
    if far_up:
        run.steps(last + 1, last + 1500, losses=dict.fromkeys(range(last + 300, last + 1501), 9.0))
        last += 1500
    if treated:
        run.action("rollback", last - 1)
        run.event("rollback", step=last - 1, name="rollback", from_step=last - 1, to_step=2)
    run.exit("completed", last)
    run.finish(state, reason="it is said why")

    (told,) = told_by_all(run)

    assert told == said_at_the_end(run, state, "it is said why", last)


def test_a_run_that_goes_on_is_told_alike(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "a")
    run.start(1)
    run.steps(0, 20)
    run.exit("preempted", 20)
    run.event("run_finished", state="interrupted", reason="SIGTERM")
    run.attempt = 2
    run.event("attempt_started", step=15, checkpoint_step=15)
    run.event("resumed", step=15, from_step=15, exactness="exact", reason="")
    run.steps(16, 18)
    created = psutil.Process().create_time()
    run.state = dataclasses.replace(run.state, pid=os.getpid(), pid_created=created)
    run.set_state("running")

    (told,) = told_by_all(run)

    assert told[0] == "running at step 18, after 2 attempts"
    assert told[3] == f"next: supervisor watch {tmp_path / 'a'}"
