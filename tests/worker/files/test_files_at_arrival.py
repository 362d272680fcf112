"""What the script's files become when a replay has reached its target."""

from __future__ import annotations

import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from supervisor.worker.files.attempt_files import wait_for_executors
from supervisor.worker.files.files_at_arrival import FilesAtArrival, OtherNames
from supervisor.worker.files.replayed_files import ReplayedFiles
from tests.worker.files.test_replayed_files import aside_of, record_of, replayed_in


def test_what_is_written_and_closed_in_a_replay_is_lost(tmp_path: Path) -> None:
    replayed, path = replayed_in(tmp_path), tmp_path / "picture.png"
    path.write_bytes(b"trained")

    with replayed.opened(path, "w+b", open) as file:
        file.write(b"untrained")
        file.seek(0)
        assert file.read() == b"untrained"
    settled = FilesAtArrival(replayed)
    settled.restore_in_place()
    settled.settle()

    assert path.read_bytes() == b"trained"
    assert [p.name for p in tmp_path.iterdir()] == ["picture.png"]


def test_a_file_that_is_open_at_the_target_goes_on_under_its_name(tmp_path: Path) -> None:
    replayed, path = replayed_in(tmp_path), tmp_path / "log.bin"
    path.write_bytes(b"0123456789")

    file = replayed.opened(path, "wb", open)
    file.write(b"0123")
    FilesAtArrival(replayed).settle()
    file.write(b"45")
    file.close()

    assert path.read_bytes() == b"012345"


def test_files_that_change_their_names_in_turn_are_left_alone(tmp_path: Path) -> None:
    replayed, last, previous = replayed_in(tmp_path), tmp_path / "last.pt", tmp_path / "previous.pt"
    last.write_bytes(b"2")
    previous.write_bytes(b"1")

    assert replayed.keeps(last)
    assert replayed.renamed(str(last), str(previous))
    FilesAtArrival(replayed).settle()

    assert (last.read_bytes(), previous.read_bytes()) == (b"2", b"1")


def test_what_is_deleted_comes_back_instead_of_what_would_replace_it(tmp_path: Path) -> None:
    replayed, best, new = replayed_in(tmp_path), tmp_path / "best.pt", tmp_path / "new.pt"
    best.write_bytes(b"trained")
    os.utime(best, (1.0, 1.0))
    assert not replayed.keeps(new)
    new.write_bytes(b"untrained")

    assert replayed.removed(str(best))
    gone = not best.exists()
    assert replayed.linked(str(new), str(best))
    FilesAtArrival(replayed).settle()

    assert gone
    assert best.read_bytes() == b"trained"


def test_a_folder_that_the_script_clears_gives_its_files_back(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "first.pt").write_bytes(b"trained")
    (out / "later.txt").write_bytes(b"of a step beyond the target")
    os.utime(out / "first.pt", (1.0, 1.0))
    replayed = replayed_in(tmp_path)

    assert not replayed.cleared(str(out))
    shutil.rmtree(out)
    out.mkdir()
    assert replayed.keeps(out / "first.pt")
    FilesAtArrival(replayed).settle()

    assert [p.name for p in tmp_path.rglob("*")] == ["out", "first.pt"]
    assert (out / "first.pt").read_bytes() == b"trained"


def test_files_of_the_recorded_run_come_back_by_the_names_of_this_one(tmp_path: Path) -> None:
    old, new = tmp_path / "run_1111", tmp_path / "run_2222"
    record = record_of(tmp_path)
    for folder in (old, old / "parts"):
        record.makes_folder(str(folder))
        folder.mkdir()
    record.writes(str(old / "parts" / "best.pt"), anew=True)
    (old / "parts" / "best.pt").write_bytes(b"trained")
    live = ReplayedFiles(aside_of(tmp_path), record)
    live.whole.wrote(str(old / "parts" / "best.pt"))
    recorded, interval = live.whole.present(), record.begin_interval()
    replayed = replayed_in(tmp_path)

    replayed.hide(interval, 0.0)
    replayed.fold()
    (new / "parts").mkdir(parents=True)
    replayed.whole.wrote(str(new / "parts" / "best.pt"))
    assert not replayed.keeps(new / "parts" / "best.pt")
    (new / "parts" / "best.pt").write_bytes(b"untrained")
    settled = FilesAtArrival(replayed)
    settled.take_names([("run_1111", "run_2222")])
    found = settled.settle(recorded=recorded)

    assert found.problems == []
    assert (new / "parts" / "best.pt").read_bytes() == b"trained"
    assert not old.exists()
    assert record_of(tmp_path).results()[0] == [str(new / "parts" / "best.pt")]


def test_a_hidden_empty_folder_does_not_keep_what_the_script_looks_for(tmp_path: Path) -> None:
    record, runs = record_of(tmp_path), tmp_path / "runs"
    record.makes_folder(str(runs))
    (runs / ".trash").mkdir(parents=True)
    interval, replayed = record.begin_interval(), replayed_in(tmp_path)

    replayed.hide(interval, 0.0)
    replayed.fold()
    assert not runs.exists()
    FilesAtArrival(replayed).settle()

    assert (runs / ".trash").is_dir()


def test_a_replay_that_arrived_is_not_undone(tmp_path: Path) -> None:
    new = tmp_path / "new.pt"
    replayed = replayed_in(tmp_path)
    assert not replayed.keeps(new)
    new.write_bytes(b"untrained until the target, trained behind it")
    FilesAtArrival(replayed).settle()

    assert aside_of(tmp_path).undo() == []
    assert new.exists()


def test_what_is_changed_in_place_comes_back_in_place(tmp_path: Path) -> None:
    replayed, path = replayed_in(tmp_path), tmp_path / "ring.dat"
    path.write_bytes(b"trained!")
    os.utime(path, (1.0, 1.0))

    with replayed.opened(path, "r+b", open) as file:
        before = file.read()
        file.seek(0)
        file.write(b"untr")
    mapped = os.open(path, os.O_RDONLY)
    settled = FilesAtArrival(replayed)
    settled.restore_in_place()
    found = settled.settle()

    assert before == b"trained!"
    assert os.pread(mapped, 100, 0) == path.read_bytes() == b"trained!"
    assert found.problems == []


def test_a_save_under_way_is_waited_for() -> None:
    with ThreadPoolExecutor(1) as pool:
        saved = [pool.submit(time.sleep, 0.05) for _ in range(3)]

        assert wait_for_executors() == []
        assert all(one.done() for one in saved)


def test_threads_that_wait_for_the_training_keep_nobody() -> None:
    go_on = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(go_on.wait, 60.0)

        assert wait_for_executors() == []
        go_on.set()
        assert waiting.result()


def test_one_that_does_not_end_is_named() -> None:
    ended: list[bool] = []

    def work() -> None:
        while not ended:
            pass

    with ThreadPoolExecutor(1, thread_name_prefix="writer") as pool:
        pool.submit(work)
        try:
            assert wait_for_executors(0.1) == ["writer_0"]
        finally:
            ended.append(True)


def test_the_number_of_a_process_is_no_part_of_a_longer_one(tmp_path: Path) -> None:
    names = OtherNames([("1234", "5678")])

    assert names.of(f"{tmp_path}/best_1234.pt") == f"{tmp_path}/best_5678.pt"
    assert names.of(f"{tmp_path}/step_12345.pt") == f"{tmp_path}/step_12345.pt"


def test_a_name_whose_folder_is_not_there_stays(tmp_path: Path) -> None:
    names = OtherNames([("run_one", "run_two")])

    assert names.of(f"{tmp_path}/run_one/a.pt") == f"{tmp_path}/run_one/a.pt"
    (tmp_path / "run_two").mkdir()
    assert names.of(f"{tmp_path}/run_one/a.pt") == f"{tmp_path}/run_two/a.pt"
