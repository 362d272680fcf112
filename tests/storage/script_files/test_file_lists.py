"""Files that were written in a way that is not seen are found by their times."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.script_files import file_lists as module
from supervisor.storage.script_files.script_files import ScriptFiles


def record_with_a_file(folder: Path) -> ScriptFiles:
    record = ScriptFiles(RunDirectory(folder / "run"), 0)
    for name in ("seen.pt", "log.txt"):
        (folder / name).write_text("old")
        record.writes(str(folder / name), anew=False)
    record.writes(str(folder / "made.pt"), anew=True)
    (folder / "old.h5").write_text("old")
    os.utime(folder / "old.h5", (1.0, 1.0))
    record.begin_interval()
    for name in ("seen.pt", "log.txt", "made.pt"):
        (folder / name).write_text("new")
    return record


@pytest.fixture(autouse=True)
def _later_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks has begun after all that is written here."""
    monkeypatch.setattr(module, "process_start", lambda: time.time() + 60)


def test_the_start_of_a_process_is_not_that_of_its_whole_second() -> None:
    look = "from supervisor.storage.script_files.file_lists import process_start as at; print(at())"
    before = time.time()

    printed = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True)

    assert before - 0.05 < float(printed.stdout) < time.time()


def test_what_changed_since_this_process_began_is_written_at_every_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = record_with_a_file(tmp_path)
    (tmp_path / "starts").write_text("2")
    monkeypatch.setattr(module, "process_start", lambda: time.time() - 60)

    assert record.unseen() == []


def test_files_that_nobody_was_seen_to_write_are_found_in_a_later_process(tmp_path: Path) -> None:
    record_with_a_file(tmp_path)
    assert ScriptFiles(RunDirectory(tmp_path / "run"), 0).unseen() == []

    (tmp_path / "by_c.h5").write_text("1")
    (tmp_path / ".hidden").write_text("1")
    (tmp_path / "run" / "ours").write_text("1")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "x").write_text("1")

    found = ScriptFiles(RunDirectory(tmp_path / "run"), 0).unseen()

    assert found == [str(tmp_path / "by_c.h5")]


def test_a_file_that_a_living_process_writes_is_not_the_scripts(tmp_path: Path) -> None:
    record = record_with_a_file(tmp_path)
    log = tmp_path / "terminal.log"
    wait = "import sys; print('here', flush=True); sys.stdin.read()"

    with (
        open(log, "w") as out,
        subprocess.Popen([sys.executable, "-c", wait], stdin=subprocess.PIPE, stdout=out) as other,
    ):
        while not log.read_text():
            assert other.poll() is None
        out.close()
        while_open = record.unseen()
        assert other.stdin is not None
        other.stdin.close()

    assert while_open == []
    assert record.unseen() == [str(log)]


def test_what_a_dead_parent_of_the_run_has_printed_is_not_the_scripts(tmp_path: Path) -> None:
    record = record_with_a_file(tmp_path)
    note = (
        "from pathlib import Path; from supervisor.storage.run.rundir import RunDirectory; "
        "from supervisor.storage.run.rundir import note_terminal; "
        f"note_terminal(RunDirectory(Path({str(tmp_path / 'run')!r}))); print('trained')"
    )

    for name in ("slurm-1.out", "slurm-2.out"):
        with open(tmp_path / name, "w") as out:
            subprocess.run([sys.executable, "-c", note], stdout=out, check=True)
    (tmp_path / "other.out").write_text("1")

    assert (tmp_path / "slurm-1.out").read_text() == "trained\n"
    assert record.unseen() == [str(tmp_path / "other.out")]


def test_a_folder_of_very_many_files_is_not_looked_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = record_with_a_file(tmp_path)
    (tmp_path / "by_c.h5").write_text("1")
    monkeypatch.setattr(module, "MOST_FILES", 0)

    assert record.unseen() == []


def test_what_changes_in_a_folder_of_all_programs_is_not_the_scripts(tmp_path: Path) -> None:
    record = record_with_a_file(tmp_path)
    (tmp_path / "of_another_program").write_text("1")

    tmp_path.chmod(0o1777)

    assert record.unseen() == []


def test_a_folder_of_all_programs_is_looked_into_if_the_script_works_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = record_with_a_file(tmp_path)
    (tmp_path / "by_c.h5").write_text("1")
    tmp_path.chmod(0o1777)

    monkeypatch.chdir(tmp_path)

    assert record.unseen() == [str(tmp_path / "by_c.h5")]
