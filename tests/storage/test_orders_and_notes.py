from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.errors import RunDirectoryError
from supervisor.records import WorkerOrder
from supervisor.storage.run.exit_notes import ExitNote, load_exit_note, save_exit_note
from supervisor.storage.run.run_state import load_order, save_order
from supervisor.storage.run.rundir import RunDirectory


def test_an_order_comes_back_as_it_was(tmp_path: Path) -> None:
    order = WorkerOrder(attempt=3, checkpoint_step=40, skip_steps=(41, 42), lr_factor=0.5)

    save_order(RunDirectory(tmp_path), order)

    assert load_order(RunDirectory(tmp_path), 3) == order


def test_a_missing_order_is_told_with_advice(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"no attempt_1\.json: start workers with"):
        load_order(RunDirectory(tmp_path), 1)


def test_a_note_comes_back_as_it_was(tmp_path: Path) -> None:
    note = ExitNote(
        kind="exception",
        exception="torch.OutOfMemoryError",
        message="CUDA out of memory",
        traceback="Traceback ...",
        last_step=7,
        evidence=("peak 79 GiB", "of 80 GiB"),
        memory={"peak_gib": 79.0},
    )

    save_exit_note(RunDirectory(tmp_path), 1, 2, note)

    assert load_exit_note(RunDirectory(tmp_path), 1, 2) == note


@pytest.mark.parametrize("text", [None, "", "{", '{"code": 3}', "[]"])
def test_a_worker_without_a_readable_note_left_none(text: str | None, tmp_path: Path) -> None:
    rundir = RunDirectory(tmp_path)
    if text is not None:
        rundir.make(rundir.exit_note(1, 0).parent)
        rundir.exit_note(1, 0).write_text(text)

    assert load_exit_note(rundir, 1, 0) is None
