"""A database of the script's is put aside as a whole, and begins a replay as it began the run."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.script_files.databases import SQLITE, Databases
from supervisor.storage.script_files.set_aside import SetAside


def _rows(path: Path) -> list[int]:
    with sqlite3.connect(path) as base:
        found = [row for (row,) in base.execute("select id from trial order by id")]
    base.close()
    return found


def _insert(path: Path, count: int) -> None:
    with sqlite3.connect(path) as base:
        base.execute("create table if not exists trial(id integer primary key)")
        base.executemany("insert into trial values(null)", [()] * count)
    base.close()


def _opened(folder: Path) -> tuple[RunDirectory, Path]:
    """A run that has opened a database and written two rows."""
    rundir, path = RunDirectory(folder / "run"), folder / "study.db"
    Databases(rundir, 0).opens(str(path), SQLITE)
    _insert(path, 2)
    return rundir, path


def test_one_that_the_run_has_made_is_not_there_for_a_replay(tmp_path: Path) -> None:
    rundir, path = _opened(tmp_path)
    databases, aside = Databases(rundir, 0), SetAside(rundir, 0)

    databases.hide(aside)

    assert not path.exists()
    assert databases.made_again() == set()
    _insert(path, 1)
    assert databases.made_again() == {str(path)}
    assert databases.settle(str(path)) is True
    assert databases.not_as_they_were(with_weights=False) == []
    assert databases.not_as_they_were(with_weights=True) == [str(path)]


def test_one_from_before_the_run_begins_a_replay_as_it_was(tmp_path: Path) -> None:
    _insert(tmp_path / "study.db", 3)
    rundir, path = _opened(tmp_path)

    Databases(rundir, 0).hide(SetAside(rundir, 0))

    assert _rows(path) == [1, 2, 3]


def test_a_replay_that_does_not_arrive_leaves_the_rows_of_the_recorded_run(tmp_path: Path) -> None:
    _insert(tmp_path / "study.db", 3)
    rundir, path = _opened(tmp_path)
    Databases(rundir, 0).hide(SetAside(rundir, 0))
    _insert(path, 1)
    Path(f"{path}-journal").write_bytes(b"half done by the replay")

    problems = SetAside(rundir, 0).undo()

    assert problems == []
    assert not Path(f"{path}-journal").exists()
    assert _rows(path) == [1, 2, 3, 4, 5]


def test_all_parts_are_put_aside_together(tmp_path: Path) -> None:
    rundir, path = _opened(tmp_path)
    for ending in SQLITE[1:]:
        Path(f"{path}{ending}").write_bytes(b"of the killed process")
    databases = Databases(rundir, 0)

    databases.hide(SetAside(rundir, 0))

    assert list(tmp_path.glob("study.db*")) == []
    assert databases.settle(f"{path}-shm") is None
    assert databases.settle(f"{path}-journal") is False
    assert databases.not_as_they_were(with_weights=False) == [str(path)]


def test_a_training_that_begins_anew_goes_on_with_what_there_is(tmp_path: Path) -> None:
    rundir, path = _opened(tmp_path)
    databases = Databases(rundir, 0)

    databases.forget()
    databases.opens(str(path), SQLITE)
    _insert(path, 2)
    Databases(rundir, 0).hide(SetAside(rundir, 0))

    assert _rows(path) == [1, 2]


def test_an_open_one_is_known_to_be_by_whatever_path_it_was_named(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    databases = Databases(RunDirectory(tmp_path / "run"), 0)
    databases.opens(str(tmp_path / "link" / "study.db"), SQLITE)
    assert not databases.are_open()

    base = sqlite3.connect(tmp_path / "study.db")
    assert databases.are_open()
    base.close()

    assert not databases.are_open()
