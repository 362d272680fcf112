from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.storage.steps import replay_log as tape_module
from supervisor.storage.steps.replay_log import EntryKind, ReplayLogWriter
from supervisor.storage.steps.replay_log_reader import ReplayLogReader

Fill = Callable[[bool], None]


@pytest.fixture
def fill(monkeypatch: pytest.MonkeyPatch) -> Fill:
    """Makes the replay log's disk full, after half of what it is given, or gives it room again."""
    full = [False]

    class Os:
        def __getattr__(self, name: str) -> object:
            return getattr(os, name)

        def write(self, descriptor: int, data: memoryview) -> int:
            if not full[0]:
                return os.write(descriptor, data)
            if len(data) > 1:
                return os.write(descriptor, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tape_module, "os", Os())
    return lambda wanted: full.__setitem__(0, wanted)


def test_nothing_is_raised_and_nothing_is_lost(tmp_path: Path, fill: Fill) -> None:
    writer = ReplayLogWriter(tmp_path / "a.tape")
    writer.append(EntryKind.BOOL, b"1")

    fill(True)
    for _ in range(3000):
        writer.append(EntryKind.RANDOM_STATE, bytes(100))
        writer.insert(writer.offset, EntryKind.RANDOM_STATE, b"tlate")
    refused = writer.write_out()
    fill(False)
    end = writer.write_out()

    writer.close()
    assert refused == -1
    assert end == (tmp_path / "a.tape").stat().st_size
    reader = ReplayLogReader(tmp_path / "a.tape", end=end)
    assert reader.take(EntryKind.BOOL) == b"1"
    read = [reader.take(EntryKind.RANDOM_STATE) for _ in range(6000)]
    assert read == [bytes(100), b"tlate"] * 3000
    assert not reader.peek()


def test_what_is_kept_in_memory_is_bounded(
    tmp_path: Path, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tape_module, "_KEPT_BYTES", 1000)
    writer = ReplayLogWriter(tmp_path / "a.tape")

    fill(True)
    for _ in range(3000):
        writer.append(EntryKind.RANDOM_STATE, bytes(100))

    assert writer.is_full
    writer.close()
