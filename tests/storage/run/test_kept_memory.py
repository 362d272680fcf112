"""Memory that outlives the ranks: what it says, and of which step all ranks have a state."""

from __future__ import annotations

import os

import pytest

from supervisor.storage.run import kept_memory
from supervisor.storage.run.kept_memory import Head, KeptMemory, read_head, write_head


def says(memory: KeptMemory, rank: int, place: int, step: int | None) -> None:
    descriptor = os.open(memory.places[str(rank)][place], os.O_RDWR)
    try:
        head = None if step is None else Head(step=step, at=4096, length=1, checksum=2)
        write_head(descriptor, head)
        assert read_head(descriptor) == head
    finally:
        os.close(descriptor)


def test_the_newest_step_is_one_that_all_ranks_have() -> None:
    memory = KeptMemory(2)
    assert memory.newest_step() is None
    for place, step in enumerate((7, 8)):
        says(memory, 0, place, step)
    says(memory, 1, 0, 7)
    assert memory.newest_step() == 7

    says(memory, 1, 1, 8)
    assert memory.newest_step() == 8
    says(memory, 1, 1, None)  # killed while it copied
    assert memory.newest_step() == 7
    says(memory, 1, 0, None)
    assert memory.newest_step() is None

    memory.clear()
    assert memory.newest_step() is None
    memory.close()
    assert memory.places == {}


def test_a_system_without_such_files_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> int:
        raise OSError("too many open files")

    monkeypatch.setattr(kept_memory.os, "memfd_create", refuses)

    memory = KeptMemory(2)

    assert memory.places == {}
    assert memory.newest_step() is None
