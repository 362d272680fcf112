"""What the disk refuses is there when it takes it again, in order, and told once."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from supervisor.storage.files import private_files
from supervisor.storage.files.json_files import LineFile
from supervisor.storage.files.kept_writes import KeptWrite, KeptWrites


class Disk:
    """Refuses writes, of all files or of those whose names are given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refuses: int | None = None
        real = KeptWrite.make

        def make(write: KeptWrite) -> None:
            if self.refuses is not None:
                raise OSError(self.refuses, os.strerror(self.refuses), str(write.path))
            real(write)

        monkeypatch.setattr(KeptWrite, "make", make)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def told() -> list[str]:
    return []


def kept_writes(told: list[str], limit: int = 1000) -> KeptWrites:
    kept = KeptWrites(limit)
    kept.on_refused = lambda path, error: told.append(f"{path.name}: {error.strerror}")
    kept.on_written = lambda: told.append("written")
    return kept


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT])
def test_what_is_refused_is_written_in_order_when_the_disk_takes_it(
    number: int, disk: Disk, told: list[str], tmp_path: Path
) -> None:
    kept, lines = kept_writes(told), LineFile(tmp_path / "lines")
    kept.append(lines, b"one")
    disk.refuses = number

    done = [kept.append(lines, b"two"), kept.replace(tmp_path / "whole", "old")]
    done += [kept.replace(tmp_path / "whole", "new"), kept.append(lines, b"three")]
    refused = kept.try_again(now=True)
    disk.refuses = None
    written = kept.try_again(now=True)

    assert done == [True, False, False, True]
    assert (refused, written) == (False, True)
    assert lines.path.read_bytes() == b"one\ntwo\nthree\n"
    assert (tmp_path / "whole").read_text() == "new"
    assert told == [f"lines: {os.strerror(number)}", "written"]


def test_a_place_in_a_file_is_written_later_too(
    disk: Disk, told: list[str], tmp_path: Path
) -> None:
    (tmp_path / "rows").write_bytes(b"0123456789")
    kept, disk.refuses = kept_writes(told), errno.ENOSPC

    kept.add(KeptWrite(path=tmp_path / "rows", data=b"ab", at=4))
    disk.refuses = None
    kept.try_again(now=True)

    assert (tmp_path / "rows").read_bytes() == b"0123ab6789"


def test_memory_is_bounded_and_what_has_no_room_is_said_to_be_lost(
    disk: Disk, told: list[str], tmp_path: Path
) -> None:
    kept, lines = kept_writes(told, limit=10), LineFile(tmp_path / "lines")
    disk.refuses = errno.ENOSPC

    answers = [kept.append(lines, data) for data in (b"12345", b"67890", b"x")]

    assert answers == [True, True, False]
    assert [write.data for write in kept.kept()] == [b"12345", b"67890"]
    kept.forget(lines.path)
    assert kept.append(lines, b"y" * 10)


def test_a_file_that_is_replaced_is_overwritten_where_there_is_no_room_for_a_second(
    monkeypatch: pytest.MonkeyPatch, told: list[str], tmp_path: Path
) -> None:
    def refuse(path: Path, data: bytes, *, durable: bool) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "run.json"
    path.write_text("the state of before")
    os.sync()
    monkeypatch.setattr("supervisor.storage.files.kept_writes.write_private", refuse)
    kept = kept_writes(told)

    assert kept.replace(path, "completed")
    assert path.read_text() == "completed"
    assert not kept.replace(path, "x" * 1_000_000)
    assert path.read_text() == "completed"
    assert not kept.replace(tmp_path / "new", "note")


def test_a_file_system_that_replaces_no_names_is_written_in_two_steps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def replaces_nothing(old: Path, new: Path) -> None:
        if os.path.exists(new):
            raise OSError(errno.EEXIST, "File exists")
        os.rename(old, new)

    before = private_files.replaces_names(tmp_path)
    monkeypatch.setattr(private_files, "own_replace", replaces_nothing)

    for text in ("first", "second"):
        private_files.write_private(tmp_path / "file", text)

    assert (before, private_files.replaces_names(tmp_path)) == (True, False)
    assert (tmp_path / "file").read_text() == "second"
    assert os.listdir(tmp_path) == ["file"]
