"""What the note of a worker says of the ways in which a script ends its process."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from supervisor.own_process import Given
from supervisor.storage.run.exit_notes import ExitNote, load_exit_note
from supervisor.storage.run.rundir import RunDirectory
from supervisor.worker.__main__ import Worker


class Session:
    """Of a script that is being fast-forwarded."""

    steps_done = 3
    has_arrived = False
    samples_at_fault = ()
    shortfall = "the script ended after 3 fast-forwarded steps"

    def stop(self, **_: bool) -> None:
        """Nothing is left to do."""


@pytest.fixture
def rundir(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


def worker(rundir: RunDirectory) -> Worker:
    return Worker(rundir, 1, 0, Given({}), [])


def noted(rundir: RunDirectory) -> ExitNote:
    note = load_exit_note(rundir, 1, 0)
    assert note is not None
    return note


def test_a_thread_that_ends_the_process_in_a_replay_ends_no_training(rundir: RunDirectory) -> None:
    leaving = worker(rundir)
    leaving._session = Session()

    thread = threading.Thread(target=leaving._script_leaves, args=(0,))
    thread.start()
    thread.join()

    assert (noted(rundir).kind, noted(rundir).message) == ("short", Session.shortfall)


@pytest.mark.parametrize("code", [0.0, "0"])
def test_what_is_no_whole_number_is_a_failure_as_for_python(
    rundir: RunDirectory, code: object
) -> None:
    assert worker(rundir)._script_exits(SystemExit(code)) == 1

    assert (noted(rundir).kind, noted(rundir).code) == ("system_exit", 1)


@pytest.mark.parametrize("code", [None, 0, False])
def test_zero_and_nothing_are_the_end(rundir: RunDirectory, code: object) -> None:
    assert worker(rundir)._script_exits(SystemExit(code)) == 0

    assert noted(rundir).kind == "completed"
