"""What a replay would write stays away from what lies on the disk."""

from __future__ import annotations

import json
import os
from pathlib import Path

from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.script_files.script_files import ScriptFiles
from supervisor.storage.script_files.set_aside import SetAside
from supervisor.worker.files.replayed_files import ReplayedFiles


def replayed_in(folder: Path) -> ReplayedFiles:
    return ReplayedFiles(aside_of(folder), record_of(folder))


def record_of(folder: Path) -> ScriptFiles:
    return ScriptFiles(RunDirectory(folder.parent / f"{folder.name}_run"), 0)


def aside_of(folder: Path) -> SetAside:
    return SetAside(RunDirectory(folder.parent / f"{folder.name}_run"), 0)


def test_a_file_that_exists_is_kept_and_a_new_one_may_be_written_again(tmp_path: Path) -> None:
    replayed, old, new = replayed_in(tmp_path), tmp_path / "old.pt", tmp_path / "new.pt"
    old.write_bytes(b"trained")

    first = [replayed.keeps(old), replayed.keeps(new)]
    new.write_bytes(b"untrained")

    assert first == [True, False]
    assert [replayed.keeps(old), replayed.keeps(new)] == [True, False]


def test_an_atomic_save_does_not_replace_the_newer_file(tmp_path: Path) -> None:
    replayed, temporary, path = replayed_in(tmp_path), tmp_path / "a.tmp", tmp_path / "a.pt"
    path.write_bytes(b"trained")

    assert replayed.opened(temporary, "wb", open) is None
    temporary.write_bytes(b"untrained")

    assert replayed.renamed(str(temporary), str(path))
    assert [p.name for p in tmp_path.iterdir()] == ["a.pt"]


def test_a_temporary_file_that_was_made_empty_is_written_and_does_not_replace(
    tmp_path: Path,
) -> None:
    replayed, temporary, path = replayed_in(tmp_path), tmp_path / "a.tmp", tmp_path / "a.pt"
    path.write_bytes(b"trained")
    temporary.touch()

    assert replayed.opened(temporary, "wb", open) is None
    assert not replayed.keeps(temporary)
    temporary.write_bytes(b"untrained")
    assert replayed.renamed(str(temporary), str(path))

    assert [p.name for p in tmp_path.iterdir()] == ["a.pt"]


def test_a_replay_that_is_killed_is_undone_before_the_next(tmp_path: Path) -> None:
    best, new, folder = tmp_path / "best.pt", tmp_path / "new.pt", tmp_path / "made"
    best.write_bytes(b"trained")
    os.utime(best, (1.0, 1.0))
    folder.mkdir(mode=0o750)
    aside = aside_of(tmp_path)
    replayed = ReplayedFiles(aside, record_of(tmp_path))
    assert replayed.removed(str(best))
    aside.fold(str(folder))
    assert not replayed.keeps(new)
    new.write_bytes(b"untrained")
    assert not replayed.linked(str(new), str(tmp_path / "other.pt"))
    (tmp_path / "other.pt").write_bytes(b"untrained")
    best.write_bytes(b"untrained, by a way that is not seen")

    first, second = aside_of(tmp_path).undo(), aside_of(tmp_path).undo()

    assert (first, second) == ([], [])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["best.pt", "made"]
    assert best.read_bytes() == b"trained"
    assert folder.stat().st_mode & 0o777 == 0o750


def test_an_undo_takes_files_back_from_other_names(tmp_path: Path) -> None:
    aside, old, new = aside_of(tmp_path), tmp_path / "1111.pt", tmp_path / "2222.pt"
    old.write_bytes(b"trained")
    aside.move(str(old))
    aside.take_names(lambda known: {str(new): value for value in known.values()})
    assert aside.bring_back(str(new))

    assert aside_of(tmp_path).undo() == []

    assert (old.read_bytes(), new.exists()) == (b"trained", False)


def test_a_list_that_somebody_else_wrote_moves_and_deletes_nothing(tmp_path: Path) -> None:
    mine, yours = tmp_path / "mine.txt", tmp_path / "yours.txt"
    mine.write_text("mine")
    yours.write_text("yours")
    listed = RunDirectory(tmp_path / "run").root / "aside" / "rank_0.jsonl"
    listed.parent.mkdir(parents=True)
    lines = [
        {"moved": str(mine), "to": str(yours)},
        {"moved": str(mine), "to": str(listed.parent / "rank_0" / ".." / "rank_0.jsonl")},
        {"moved": "mine.txt", "to": "0"},
        {"moved": 5, "to": None},
        {"wrote": str(mine), "time": mine.stat().st_mtime + 60},
        {"wrote": str(mine), "time": "now"},
        {"wrote": [1], "time": 0},
        {"folder": 7, "mode": "x"},
    ]
    listed.write_text("".join(json.dumps(line) + "\n" for line in lines) + "torn {")

    assert SetAside(RunDirectory(tmp_path / "run"), 0).undo() == []
    assert (mine.read_text(), yours.read_text()) == ("mine", "yours")


def test_a_replay_that_is_killed_gives_back_what_it_changed_in_place(tmp_path: Path) -> None:
    replayed, path = replayed_in(tmp_path), tmp_path / "ring.dat"
    path.write_bytes(b"trained!")

    with replayed.opened(path, "r+b", open) as file:
        file.write(b"untr")
    assert aside_of(tmp_path).undo() == []

    assert path.read_bytes() == b"trained!"


def test_what_is_written_into_the_run_directory_is_none_of_the_script(tmp_path: Path) -> None:
    record = record_of(tmp_path)
    replayed = ReplayedFiles(aside_of(tmp_path), record)
    ours, own = Path(record.root) / "checkpoints" / "manifest.json", tmp_path / "own.pt"
    for path in (ours, own):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"1")
        replayed.whole.wrote(str(path))

    assert list(replayed.whole.present()) == [str(own)]
