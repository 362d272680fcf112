"""Texts that a replay writes again are compared, and put back where they came out otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.worker.files.written_files import WrittenFiles
from tests.worker.files.test_replayed_files import aside_of


def test_equal_texts_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    live, replay = WrittenFiles(aside_of(tmp_path)), WrittenFiles(aside_of(tmp_path))
    with open(path, "w") as log:
        live.opened(str(path), log)
        log.write("0,a\n")
        saved = live.checksums()  # the line still waits in the buffer
        log.write("1,b\n")
    assert saved[str(path)][0] == 4

    with open(path, "w") as log:
        replay.opened(str(path), log)
        log.write("0,a\n")
        assert replay.put_back(saved) == {str(path)}


@pytest.mark.parametrize("mode", ["w", "a"])
def test_a_log_and_a_closed_text_get_what_they_held_at_the_checkpoint(
    tmp_path: Path, mode: str
) -> None:
    aside, path, whole = aside_of(tmp_path), tmp_path / "log.csv", tmp_path / "state.json"
    live, replay = WrittenFiles(aside), WrittenFiles(aside)
    with open(path, "w") as log, open(whole, "w") as file:
        live.opened(str(path), log)
        live.opened(str(whole), file)
        log.write("0,a\n1,bbb\n")
        file.write("{then}\n")
        saved = live.checksums()
        log.write("2,later\n")
    aside.move_all([str(path), str(whole)])

    log = open(path, mode)  # noqa: SIM115
    replay.opened(str(path), log)
    log.write("0,wrong\n1,wrong\n")
    with open(whole, "w") as file:
        replay.opened(str(whole), file)
        file.write("{now}\n")
    assert replay.put_back(saved) == {str(path), str(whole)}
    assert replay.differing(saved, {str(path), str(whole)}) == []
    log.write("2,live\n")
    log.close()

    assert path.read_text() == "0,a\n1,bbb\n2,live\n"
    assert whole.read_text() == "{then}\n"


def test_a_text_that_was_written_anew_since_the_checkpoint_is_named(tmp_path: Path) -> None:
    aside, path = aside_of(tmp_path), tmp_path / "state.json"
    live, replay = WrittenFiles(aside), WrittenFiles(aside)
    for content in ("{then}", "{later}"):
        with open(path, "w") as file:
            live.opened(str(path), file)
            file.write(content)
        saved = saved if content == "{later}" else live.checksums()  # noqa: F821
    aside.move_all([str(path)])
    with open(path, "w") as file:
        replay.opened(str(path), file)
        file.write("{wrong}")

    assert replay.put_back(saved) == set()
    assert replay.differing(saved, set()) == [str(path)]


def test_a_log_that_grows_is_read_on_and_one_that_shrinks_from_its_start(tmp_path: Path) -> None:
    path, texts = tmp_path / "log.txt", WrittenFiles(aside_of(tmp_path))
    log = open(path, "w")  # noqa: SIM115
    texts.opened(str(path), log)
    log.write("one\n")
    first = texts.checksums()
    log.write("two\n")
    second = texts.checksums()
    log.seek(0)
    log.truncate()
    log.write("one\n")
    third = texts.checksums()
    log.close()

    assert first == third != second
    path.unlink()
    assert texts.checksums() == {}


def test_the_next_checkpoint_has_the_checksums_of_what_was_put_back(tmp_path: Path) -> None:
    aside, path = aside_of(tmp_path), tmp_path / "copy.pt"
    live, replay = WrittenFiles(aside), WrittenFiles(aside)
    with open(path, "wb") as file:
        live.opened(str(path), file)
        file.write(b"trained")
    saved = live.checksums()
    aside.move_all([str(path)])
    with open(path, "wb") as file:
        replay.opened(str(path), file)
        file.write(b"initial")

    replay.put_back(saved)

    assert replay.checksums() == saved
