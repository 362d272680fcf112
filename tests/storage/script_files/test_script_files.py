"""The record of what a script writes, replaces and deletes."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from pathlib import Path

import pytest

from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.script_files.script_files import ScriptFiles


def record_in(folder: Path, *, training: bool = True) -> ScriptFiles:
    return ScriptFiles(RunDirectory(folder / "run"), 0, lambda: training)


def write(record: ScriptFiles, path: Path, text: str) -> None:
    record.writes(str(path), anew=True)
    path.write_text(text)


def test_what_a_file_held_at_the_checkpoint_is_kept_when_it_is_overwritten(tmp_path: Path) -> None:
    record, best = record_in(tmp_path), tmp_path / "best.pt"
    write(record, best, "1")
    os.chmod(best, 0o640)
    began = record.begin_interval()

    write(record, best, "22")
    write(record, best, "333")

    change = record_in(tmp_path).changed_since(began)[str(best)]
    assert Path(change.kept).read_text() == "1"
    assert best.read_text() == "333"
    assert best.stat().st_mode & 0o777 == 0o640


def test_what_is_deleted_or_replaced_is_kept_and_the_script_sees_nothing_of_it(
    tmp_path: Path,
) -> None:
    record, old, best = record_in(tmp_path), tmp_path / "old.pt", tmp_path / "best.pt"
    write(record, old, "old")
    write(record, best, "best")
    began = record.begin_interval()
    new = tmp_path / "new.pt"
    write(record, new, "new")

    record.goes(str(old))
    old.unlink()
    record.renames(str(new), str(best))
    new.rename(best)

    changes = record_in(tmp_path).changed_since(began)
    kept = {path: Path(change.kept).read_text() for path, change in changes.items()}
    assert kept == {str(old): "old", str(best): "best"}
    assert [p.name for p in tmp_path.iterdir() if p.name != "run"] == ["best.pt"]


def test_what_was_made_after_the_checkpoint_is_not_kept(tmp_path: Path) -> None:
    record, path = record_in(tmp_path), tmp_path / "late.pt"
    began = record.begin_interval()

    write(record, path, "1")
    write(record, path, "2")

    assert record.changed_since(began) == {}
    assert record.was_made_since(str(path), began)


def test_versions_of_the_checkpoint_before_the_last_are_dropped(tmp_path: Path) -> None:
    record, path = record_in(tmp_path), tmp_path / "best.pt"
    write(record, path, "0")
    for number in range(1, 5):
        record.begin_interval()
        write(record, path, str(number))

    kept = sorted(p.read_text() for p in (tmp_path / "run" / "files" / "rank_0").iterdir())

    assert kept == ["2", "3"]
    assert Path(record.changed_since(4)[str(path)].kept).read_text() == "3"
    record.stop()
    assert list((tmp_path / "run" / "files" / "rank_0").iterdir()) == []


def test_a_file_of_two_names_is_written_in_place_and_called_lost(tmp_path: Path) -> None:
    record, path, other = record_in(tmp_path), tmp_path / "a.pt", tmp_path / "b.pt"
    write(record, path, "1")
    os.link(path, other)
    began = record.begin_interval()

    write(record, path, "2")

    assert other.read_text() == "2"
    assert record.changed_since(began)[str(path)].kept == ""


def test_another_disk_leaves_the_file_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("supervisor.storage.script_files.kept_versions.own_rename", refuse)
    record, path = record_in(tmp_path), tmp_path / "a.pt"
    write(record, path, "1")
    began = record.begin_interval()

    record.writes(str(path), anew=True)

    assert path.read_text() == "1"
    assert record_in(tmp_path).changed_since(began)[str(path)].kept == ""


def test_results_are_what_the_script_made_but_not_the_data_that_it_prepared(
    tmp_path: Path,
) -> None:
    early = record_in(tmp_path, training=False)
    data, out, mine = tmp_path / "data.npy", tmp_path / "out", tmp_path / "mine.txt"
    mine.write_text("of the user")
    write(early, data, "prepared")
    early.reads(str(data))
    early.makes_folder(str(out))
    out.mkdir()
    write(early, out / "hparams.yaml", "x")
    (out / "by_c.h5").write_text("written by a library")
    early.writes(str(mine), anew=False)

    files, folders = record_in(tmp_path).results()

    assert sorted(files) == [str(out / "by_c.h5"), str(out / "hparams.yaml")]
    assert folders == [str(out)]


def test_the_description_of_a_run_in_the_folder_of_its_results_is_no_data(tmp_path: Path) -> None:
    early = record_in(tmp_path, training=False)
    data, run, beside = (tmp_path / "made" / name for name in ("data", "5567c4", "default"))
    for folder in (tmp_path / "made", data, run, beside, run / "metrics"):
        early.makes_folder(str(folder))
        folder.mkdir()
    for path in (data / "rows.npy", run / "meta.yaml", beside / "meta.yaml"):
        write(early, path, "x" * (100_000 if path.parent == data else 1))
        early.reads(str(path))

    assert record_in(tmp_path).results()[0] == []
    write(record_in(tmp_path), run / "metrics" / "loss", "1")

    results = [run / "meta.yaml", beside / "meta.yaml", run / "metrics" / "loss"]
    assert record_in(tmp_path).results()[0] == [str(path) for path in results]


def test_what_was_made_in_one_folder_with_data_stays_with_it(tmp_path: Path) -> None:
    early = record_in(tmp_path, training=False)
    model, inner, logs = tmp_path / "encoder", tmp_path / "encoder" / "pooling", tmp_path / "logs"
    for folder in (model, inner, logs):
        early.makes_folder(str(folder))
        folder.mkdir()
    written = (model / "config.json", inner / "model.safetensors", inner / "events")
    for path in (*written, logs / "hparams.yaml"):
        write(early, path, "x")
    (model / "by_rust.bin").write_text("written by a library")
    early.reads(str(model / "config.json"))  # the weights are read by a library in Rust
    early.begin_interval()
    (inner / "later.h5").write_text("written by a library")
    for path in (inner / "later.h5", inner / "events"):  # written to in the training
        os.utime(path, (2e9, 2e9))

    found = record_in(tmp_path).results()[0]

    results = [inner / "events", inner / "later.h5", logs / "hparams.yaml"]
    assert sorted(found) == [str(path) for path in results]


def test_a_socket_belongs_to_its_process_and_is_no_result(tmp_path: Path) -> None:
    record, folder = record_in(tmp_path), tmp_path / "server"
    record.makes_folder(str(folder))
    folder.mkdir()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(folder / "listener"))  # a socket's path is short

    assert (folder / "listener").exists()
    assert record_in(tmp_path).results() == ([], [str(folder)])


def test_a_folder_that_is_made_again_behind_a_checkpoint_is_a_new_one(tmp_path: Path) -> None:
    record, out = record_in(tmp_path), tmp_path / "epochs"
    began = record.begin_interval()
    record.makes_folder(str(out))

    resumed = record_in(tmp_path)
    resumed.is_replay = True
    resumed.continue_at(began, set())  # it was made behind the checkpoint, and is gone
    resumed.makes_folder(str(out))

    assert resumed.was_made_since(str(out), began) is True
    assert record_in(tmp_path).was_made_since(str(out), began) is True


def test_hidden_folders_and_the_run_directory_are_left_out(tmp_path: Path) -> None:
    record = record_in(tmp_path)
    for name in (".cache/x", "run/y", "a/.hidden/z"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write(record, path, "1")

    assert record.results() == ([], [])


def test_what_python_writes_to_try_the_temporary_folder_is_nobodys(tmp_path: Path) -> None:
    record = record_in(tmp_path, training=False)

    write(record, Path(tempfile.gettempdir()) / "a1b2c3_d", "blat")
    (Path(tempfile.gettempdir()) / "a1b2c3_d").unlink()

    assert record.results() == ([], [])
    assert not record.early


def test_a_damaged_record_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    record, path = record_in(tmp_path), tmp_path / "a.pt"
    write(record, path, "1")
    listed = tmp_path / "run" / "files" / "rank_0.jsonl"
    more = [
        {"made": 5, "interval": 1},
        {"made": "relative", "interval": 1},
        {"begins": "x"},
        {"changed": str(path), "interval": 1, "before": 0, "kept": "../../a", "size": 1},
        {
            "changed": str(path),
            "interval": 1,
            "before": 0,
            "kept": "../x",
            "size": 1,
            "mtime_ns": 1,
        },
        {"read": 7},
    ]
    with open(listed, "a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in more) + "{torn")

    found = record_in(tmp_path)

    assert found.results() == ([str(path)], [])
    assert [c.kept for c in found.changed_since(1).values()] == [""]


def test_a_file_that_is_changed_in_place_is_copied_and_stays(tmp_path: Path) -> None:
    record, ring = record_in(tmp_path), tmp_path / "ring.dat"
    ring.write_bytes(b"1234")
    began = record.begin_interval()

    record.changes(str(ring))
    with open(ring, "r+b") as file:
        found = file.read()
        file.seek(0)
        file.write(b"99")

    [change] = record_in(tmp_path).changed_since(began).values()
    assert found == b"1234"
    assert Path(change.kept).read_bytes() == b"1234"
    assert record.problem_at(began) == ""


def test_a_version_that_has_no_place_is_called_lost(tmp_path: Path) -> None:
    record, best = record_in(tmp_path), tmp_path / "best.pt"
    write(record, best, "1")
    (tmp_path / "run" / "files" / "rank_0").write_text("in the way of the folder")
    began = record.begin_interval()

    write(record, best, "2")

    [change] = record_in(tmp_path).changed_since(began).values()
    assert change.kept == ""


@pytest.mark.parametrize("harm", ["gone", "a file", "damaged", "full for a while", "an error"])
def test_a_record_that_is_not_complete_says_so_to_every_later_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    told: list[str] = []
    record = ScriptFiles(RunDirectory(tmp_path / "run"), 0, lambda: True, told.append)
    write(record, tmp_path / "a.pt", "1")
    began = record.begin_interval()
    assert record_in(tmp_path).problem_at(began) == ""
    folder = tmp_path / "run" / "files"

    if harm == "gone":
        folder.rename(tmp_path / "elsewhere")
    elif harm == "a file":
        folder.rename(tmp_path / "elsewhere")
        folder.write_text("")
    elif harm == "damaged":
        with open(folder / "rank_0.jsonl", "r+") as file:
            file.write("}")
    elif harm == "an error":
        record.failed(ValueError("of ours"))
    else:
        with monkeypatch.context() as context:
            context.setattr(os, "write", refuse)
            write(record, tmp_path / "b.pt", "1")
    write(record, tmp_path / "c.pt", "1")
    record.begin_interval()

    assert record_in(tmp_path).problem_at(began) != ""
    assert record_in(tmp_path).problem_at(began + 1) != ""
    if harm in ("full for a while", "an error"):
        assert len(told) == 1
        files, _ = record_in(tmp_path).results()
        assert {str(tmp_path / "a.pt"), str(tmp_path / "c.pt")} <= set(files)


def refuse(*_: object) -> int:
    raise OSError(28, "No space left on device")


def test_a_state_that_may_be_saved_later_has_an_interval_from_the_next_change_on(
    tmp_path: Path,
) -> None:
    record, best = record_in(tmp_path), tmp_path / "best.pt"
    write(record, best, "0")
    checkpoint = record.begin_interval()
    write(record, best, "1")

    record.expect_interval()
    expected_at = record.interval
    write(record, best, "2")
    write(record, tmp_path / "new.pt", "")
    began = record.expected_interval()

    again = record_in(tmp_path)
    assert expected_at == checkpoint < began
    assert Path(again.changed_since(began)[str(best)].kept).read_text() == "1"
    assert Path(again.changed_since(checkpoint)[str(best)].kept).read_text() == "0"
    assert again.was_made_since(str(tmp_path / "new.pt"), began)
    assert not again.was_made_since(str(best), began)


def test_without_a_change_that_interval_begins_when_its_state_is_saved(tmp_path: Path) -> None:
    record = record_in(tmp_path)
    record.begin_interval()
    record.expect_interval()

    began = record.expected_interval()

    assert record.expected_interval() == began == 2
    assert record.begin_interval() == 3


def test_what_was_kept_for_a_state_that_was_never_saved_goes(tmp_path: Path) -> None:
    record, best, other = record_in(tmp_path), tmp_path / "best.pt", tmp_path / "other.pt"
    write(record, best, "0")
    write(record, other, "0")
    checkpoint = record.begin_interval()
    write(record, best, "1")

    for text in "23456":
        record.expect_interval()
        write(record, best, text)
        write(record, other, text)
    for _ in range(2):  # a process that is killed may leave the state before
        record.expect_interval()

    changes = record.changed_since(checkpoint)
    kept = {os.path.basename(p): Path(c.kept).read_text() for p, c in changes.items()}
    assert kept == {"best.pt": "0", "other.pt": "0"}
    versions = [p for p in (tmp_path / "run").rglob("*") if p.is_file() and p.suffix != ".jsonl"]
    assert len(versions) == 2


def test_checkpoints_keep_theirs_whatever_was_expected_between_them(tmp_path: Path) -> None:
    record, best = record_in(tmp_path), tmp_path / "best.pt"
    write(record, best, "0")
    first = record.begin_interval()
    for text in "1234":
        record.expect_interval()
        write(record, best, text)
    second = record.begin_interval()
    write(record, best, "5")

    assert Path(record.changed_since(first)[str(best)].kept).read_text() == "0"
    assert Path(record.changed_since(second)[str(best)].kept).read_text() == "4"


def test_the_state_before_the_last_one_can_still_be_gone_back_to(tmp_path: Path) -> None:
    record, best = record_in(tmp_path), tmp_path / "best.pt"
    write(record, best, "0")
    record.begin_interval()
    interval, began = record.expect_interval()
    write(record, best, "1")
    record.expect_interval()
    write(record, best, "2")

    found = record_in(tmp_path)
    found.begin_afterwards(interval, began)

    assert Path(found.changed_since(interval)[str(best)].kept).read_text() == "0"
    assert found.problem_at(interval) == ""
    assert found.began_at(interval) == began


def test_an_interval_without_a_change_is_begun_for_a_killed_process(tmp_path: Path) -> None:
    record = record_in(tmp_path)
    record.begin_interval()
    interval, began = record.expect_interval()

    found = record_in(tmp_path)
    assert found.problem_at(interval) != ""
    found.begin_afterwards(interval, began)

    assert record_in(tmp_path).problem_at(interval) == ""
    assert record_in(tmp_path).began_at(interval) == began


def test_what_another_rank_has_written_is_neither_unseen_nor_put_aside(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    first, second = ScriptFiles(run, 0), ScriptFiles(run, 1)
    shared = tmp_path / "shared"
    for record in (first, second):
        record.begin_interval()
    for record in (second, first):  # both find that it is not there yet
        record.makes_folder(str(shared))
    shared.mkdir()
    write(first, shared / "log_0.txt", "a")
    write(second, shared / "log_1.txt", "b")
    (shared / "tokens.json").write_text("by a library in C of the first rank")
    write(first, tmp_path / "best.pt", "c")
    write(second, tmp_path / "log_1.txt", "d")

    again = [ScriptFiles(run, rank) for rank in range(2)]

    files = [
        {Path(name).relative_to(tmp_path).as_posix() for name in r.results()[0]} for r in again
    ]
    assert files == [
        {"shared/log_0.txt", "shared/tokens.json", "best.pt"},
        {"shared/log_1.txt", "log_1.txt"},
    ]
    until = time.time() + 10.0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("supervisor.storage.script_files.file_lists.process_start", lambda: until)
        assert [record.unseen() for record in again] == [[], []]


def test_a_hidden_file_beside_results_is_one_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    saved, cache = tmp_path / "saved", tmp_path / "saved/.cache"
    cache.mkdir(parents=True)
    record, described = record_in(tmp_path), saved / ".metadata"
    write(record, tmp_path / "result", "1")
    for path in (saved / "part", described, cache / "data", tmp_path / ".mark"):
        write(record, path, "1")
    began = record.begin_interval()

    for path in (described, cache / "data", tmp_path / ".mark"):
        write(record, path, "2")

    again = record_in(tmp_path)
    made = (tmp_path / "result", saved / "part", described)
    assert set(again.results()[0]) == set(map(str, made))
    changes = again.changed_since(began)
    assert {path: Path(c.kept).read_text() for path, c in changes.items()} == {str(described): "1"}
