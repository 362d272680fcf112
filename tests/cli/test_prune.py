"""`supervisor prune`: shows first, and never deletes what a run lives on."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli.overview import run_pruning
from supervisor.settings import CheckpointSettings
from supervisor.storage.checkpoints.checkpoints import CheckpointRing
from supervisor.storage.journal.journal import Journal
from supervisor.storage.run.lease import take_lease
from supervisor.storage.run.run_state import RunState
from supervisor.storage.run.rundir import RunDirectory
from tests.cli.conftest import Cli, make_run, seen
from tests.journals import event

SIZE = 1000


def run_of(folder: Path, state: str, *, losses: tuple[float, ...] = (1.0, 0.5)) -> RunDirectory:
    """A run with the checkpoints of steps 10 (stable), 20 and 30."""
    records = tuple(seen(step, loss) for step, loss in enumerate(losses))
    rundir = make_run(folder, RunState(state=state, script="train.py"), records)
    ring = CheckpointRing(rundir.checkpoints, CheckpointSettings(min_free_gib=0.0))
    for step in (10, 20, 30):
        write = lambda place: (place / "state").write_bytes(bytes(SIZE)) and None  # noqa: E731
        ring.save(step, write, reason="test", meta={})
    ring.mark_stable(10)
    return rundir


def steps(rundir: RunDirectory) -> list[int]:
    return [c.step for c in CheckpointRing(rundir.checkpoints, CheckpointSettings()).checkpoints()]


def pruned(cli: Cli, *words: str) -> dict[str, dict[str, Any]]:
    code, out, err = cli("prune", *words, "--json")
    assert (code, err) == (0, "")
    return {Path(run["path"]).name: run for run in json.loads(out)}


def test_without_yes_nothing_is_deleted_and_the_bytes_are_said(cli: Cli, tmp_path: Path) -> None:
    rundir = run_of(tmp_path / "runs" / "a", "completed")
    before = sorted(tmp_path.rglob("*"))

    code, out, err = cli("prune")
    found = pruned(cli)["a"]

    on_disk = sum(p.stat().st_size for p in rundir.checkpoints.rglob("*") if p.is_file())
    assert (code, err) == (0, "")
    assert f"would delete: 3 checkpoints, {on_disk / 1024:.3g} KiB ({on_disk:,} bytes)" in out
    assert "add --yes" in out
    assert (found["bytes"], found["steps"], found["deleted"]) == (on_disk, [10, 20, 30], False)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_completed_run_loses_its_checkpoints_and_keeps_its_report(
    cli: Cli, tmp_path: Path
) -> None:
    rundir = run_of(tmp_path / "runs" / "a", "completed")

    code, out, _ = cli("prune", "--yes")

    assert code == 0
    assert "deleted: 3 checkpoints" in out
    assert steps(rundir) == []
    assert not rundir.lease.exists()
    assert cli("report", "runs/a", "--format", "md")[0] == 0
    assert "nothing to delete" in cli("prune")[1]


@pytest.mark.parametrize("state", ["interrupted", "gave_up", "failed"])
def test_a_run_that_can_be_resumed_keeps_what_it_would_start_from(
    cli: Cli, tmp_path: Path, state: str
) -> None:
    rundir = run_of(tmp_path / "runs" / "a", state)

    pruned(cli, "--yes")

    assert steps(rundir) == [10, 30]


def test_a_completed_run_that_ended_sick_can_go_back(cli: Cli, tmp_path: Path) -> None:
    rundir = run_of(tmp_path / "runs" / "a", "completed", losses=(1.0, math.nan))

    pruned(cli, "--yes")

    assert steps(rundir) == [10, 30]


def test_a_damaged_newest_checkpoint_does_not_count_as_the_newest(cli: Cli, tmp_path: Path) -> None:
    rundir = run_of(tmp_path / "runs" / "a", "interrupted")
    (rundir.checkpoint(30) / "state").write_bytes(b"rotten" + bytes(SIZE - 6))

    pruned(cli, "--yes")

    assert steps(rundir) == [10, 20]


def test_where_none_verifies_all_stay(cli: Cli, tmp_path: Path) -> None:
    rundir = run_of(tmp_path / "runs" / "a", "interrupted")
    for step in (10, 20, 30):
        (rundir.checkpoint(step) / "state").unlink()

    assert pruned(cli, "--yes")["a"]["reason"] == "no checkpoint of it verifies"
    assert steps(rundir) == [10, 20, 30]


def test_a_named_option_deletes_the_newest_too_and_the_report_does_not_name_it(
    cli: Cli, tmp_path: Path
) -> None:
    rundir = run_of(tmp_path / "runs" / "a", "interrupted")
    journal = Journal(rundir.rank_journal(0), attempt=1, rank=0)
    for step in (10, 20, 30):
        journal.write(event("checkpoint_saved", step=step))
    journal.close()

    pruned(cli, "--yes", "--also-newest")

    assert steps(rundir) == []
    told = cli("report", "runs/a", "--format", "md")[1]
    assert "No checkpoint is known" in told
    assert "deleted the checkpoints of steps 10, 20, 30" in told


def beside(rundir: RunDirectory, *, arrived: bool = True) -> list[Path]:
    """Files as resumes leave them behind."""
    files = [rundir.aside / "attempt_2" / "out" / "9.pt", rundir.script_files / "rank_0" / "1"]
    for path in files:
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(SIZE))
    link = rundir.aside / "attempt_2" / "last.pt"
    link.symlink_to(rundir.run_json)
    (rundir.script_files / "rank_0.jsonl").write_text('{"begins": 1}\n')
    moved = json.dumps({"moved": "/x/a.pt", "to": str(rundir.aside / "rank_0" / "1")})
    last = '{"arrived": true}\n' if arrived else ""
    (rundir.aside / "rank_0.jsonl").write_text(f"{moved}\n{last}")
    return [*files, link]


def test_what_resumes_set_aside_goes_with_a_completed_run(cli: Cli, tmp_path: Path) -> None:
    rundir = run_of(tmp_path / "runs" / "a", "completed")
    files = beside(rundir)

    shown = cli("prune")[1]
    found = pruned(cli)["a"]
    there = [path for path in files if os.path.lexists(path)]
    done = cli("prune", "--yes")[1]

    assert there == files
    assert found["files"] == 3
    assert 2 * SIZE < found["file_bytes"] < 3 * SIZE
    size = f"({found['file_bytes']:,} bytes)"
    assert "3 files of scripts beside them" in shown
    assert size in shown
    assert size in done
    assert not any(os.path.lexists(path) for path in files)
    assert rundir.run_json.exists()
    assert (rundir.script_files / "rank_0.jsonl").exists()
    assert "nothing to delete" in cli("prune")[1]


@pytest.mark.parametrize("case", ["can be resumed", "is running", "set aside", "leads out"])
def test_files_that_somebody_may_need_stay(cli: Cli, tmp_path: Path, case: str) -> None:
    state = {"can be resumed": "interrupted", "is running": "running"}.get(case, "completed")
    rundir = run_of(tmp_path / "runs" / "a", state)
    files = beside(rundir, arrived=case != "set aside")
    if case == "leads out":
        rundir.aside.rename(tmp_path / "theirs")
        rundir.aside.symlink_to(tmp_path / "theirs")

    with contextlib.ExitStack() as stack:
        if case == "is running":
            stack.enter_context(take_lease(rundir))
        found = pruned(cli, "--yes")["a"]

    assert case in found["reason"]
    assert found["files"] == 0
    assert all(os.path.lexists(path) for path in files)


def test_a_run_that_somebody_supervises_is_left_alone(cli: Cli, tmp_path: Path) -> None:
    held = run_of(tmp_path / "runs" / "held", "interrupted")
    running = run_of(tmp_path / "runs" / "running", "running")

    with take_lease(held), take_lease(running):
        found = pruned(cli, "--yes", "--also-newest")

    assert {run["reason"] for run in found.values()} == {"is running"}
    assert steps(held) == steps(running) == [10, 20, 30]


def test_a_run_that_is_resumed_between_look_and_deletion_is_left_alone(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rundir = run_of(tmp_path / "runs" / "a", "interrupted")
    monkeypatch.setattr(run_pruning, "living_holder", lambda rundir: None)  # it looked too early

    with take_lease(rundir):
        found = pruned(cli, "--yes")["a"]

    assert "supervising this run" in found["reason"]
    assert (found["deleted"], found["bytes"]) == (False, 0)
    assert steps(rundir) == [10, 20, 30]


def test_only_runs_of_the_age_that_is_asked_for(cli: Cli, tmp_path: Path) -> None:
    old, new = (run_of(tmp_path / "runs" / name, "completed") for name in ("old", "new"))
    long_ago_s = time.time() - 10 * 86400
    for path in (old.run_json, old.steps(0)):
        os.utime(path, (long_ago_s, long_ago_s))

    pruned(cli, "--yes", "--older-than", "7")

    assert steps(old) == []
    assert steps(new) == [10, 20, 30]


def test_checkpoints_behind_a_link_are_somebody_elses(cli: Cli, tmp_path: Path) -> None:
    theirs = run_of(tmp_path / "theirs", "completed")
    mine = make_run(tmp_path / "runs" / "a", RunState(state="completed"))
    mine.checkpoints.symlink_to(theirs.checkpoints)

    assert "symbolic link" in pruned(cli, "--yes")["a"]["reason"]
    assert steps(theirs) == [10, 20, 30]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("nowhere",), "nowhere: no such folder"),
        (("--older-than", "-1"), "argument --older-than: -1: give days from 0 to 36525"),
        (("--older-than", "nan"), "give days"),
        (("",), "is empty: give a path"),
    ],
)
def test_what_cannot_be_meant_is_refused(cli: Cli, words: tuple[str, ...], expected: str) -> None:
    code, out, err = cli("prune", *words)

    assert (code, out) == (64, "")
    assert expected in err


def test_a_list_fits_80_columns_and_shows_loss_treatments_and_age(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name = "a-training-with-a-rather-long-name-20260102-030405"
    state = RunState(
        state="completed", script="/home/somebody/projects/language/train_large.py",
        started_at="2026-01-02T03:04:05+00:00",
    )  # fmt: skip
    rundir = make_run(tmp_path / "runs" / name, state, (seen(0, 1.0), seen(1, 0.25)))
    journal = Journal(rundir.journal, attempt=1, rank=0)
    journal.write(event("update_skipped", step=1, reason="loss nan"))
    journal.close()

    (row,) = json.loads(cli("list", "--json")[1])
    lines = cli("list")[1].splitlines()

    assert (row["last_loss"], row["treatments"], row["verdict"]) == (0.25, 1, "completed")
    assert row["age_s"] > 0
    assert lines[0].split() == ["RUN", "VERDICT", "STEP", "LOSS", "TREATED", "AGE", "SCRIPT"]
    assert all(len(line) <= 80 for line in lines)
    assert "0.25" in lines[1]
    assert lines[1].endswith("large.py")
    assert name[-15:] in lines[1]


def test_a_list_says_that_a_run_ended_sick(cli: Cli, tmp_path: Path) -> None:
    records = (seen(0, 1.0), seen(1, math.nan))
    make_run(tmp_path / "runs" / "a", RunState(state="completed"), records)

    assert "completed, sick" in cli("list")[1]
