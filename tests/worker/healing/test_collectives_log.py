"""What a rank's collectives gave it outlives the rank."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from supervisor.storage.run.healing_memory import HealingMemory
from supervisor.worker.healing.collectives_log import (
    CollectivesLog,
    checksum_of,
    fill_from_bytes,
)

SIZE = 1 << 16


@pytest.fixture
def memory() -> Iterator[HealingMemory]:
    made = HealingMemory(2)
    yield made
    made.close()


def path_of(memory: HealingMemory, rank: int = 0, log: int = 0) -> str:
    found: str = memory.places["logs"][str(rank)][log]
    return found


def test_entries_are_there_for_the_process_that_comes_next(memory: HealingMemory) -> None:
    before = CollectivesLog(path_of(memory), SIZE)
    before.start(7)
    gave = [torch.arange(5.0), torch.tensor([1, 2], dtype=torch.int16), torch.zeros(0)]
    before.append(11, 5, 12, gave)
    before.append_message(13, b"message")

    after = CollectivesLog(path_of(memory), SIZE)

    got = [torch.zeros(5), torch.zeros(2, dtype=torch.int16), torch.zeros(0)]
    first, second = after.entries()
    assert (after.step, first.signature, first.checksum) == (7, 11, 12)
    assert fill_from_bytes(got, after.bytes_of(first))
    assert first.number == 5
    assert all(map(torch.equal, got, gave))
    assert bytes(after.bytes_of(second)) == b"message"
    assert memory.log_step(0, 0) == 7
    assert memory.log_step(1, 0) == -1


def test_an_entry_counts_only_once_it_is_whole(memory: HealingMemory) -> None:
    log = CollectivesLog(path_of(memory), SIZE)
    log.start(0)
    log.append_message(1, b"whole")
    used = log.used
    log.append_message(2, b"half")
    file = os.open(path_of(memory), os.O_RDWR)
    os.pwrite(file, used.to_bytes(8, "little"), 16)  # killed before this was stored
    os.close(file)

    after = CollectivesLog(path_of(memory), SIZE)

    assert [entry.signature for entry in after.entries()] == [1]


def test_a_log_without_room_is_of_no_use_until_it_begins_anew(memory: HealingMemory) -> None:
    log = CollectivesLog(path_of(memory), SIZE)
    log.start(3)

    fits = log.append(1, 5, 0, [torch.zeros(SIZE // 8)])
    is_half_full = log.is_half_full
    has_room = log.append(2, 5, 0, [torch.zeros(SIZE // 4)])

    assert (fits, is_half_full, has_room, memory.log_step(0, 0)) == (True, True, False, -1)
    log.start(4)
    assert log.append(1, 5, 0, [torch.zeros(1)])
    assert memory.log_step(0, 0) == 4


def test_values_come_back_into_memory_that_does_not_lie_in_one_piece(memory: HealingMemory) -> None:
    log = CollectivesLog(path_of(memory), SIZE)
    log.start(0)
    gave = torch.arange(6, dtype=torch.bfloat16).view(2, 3).t()
    log.append(1, 5, checksum_of([gave]), [gave])
    got = torch.zeros(2, 3, dtype=torch.bfloat16).t()
    (entry,) = log.entries()

    assert fill_from_bytes([got], log.bytes_of(entry))
    assert torch.equal(got, gave)
    assert checksum_of([got]) == entry.checksum
    assert not fill_from_bytes([torch.zeros(9)], log.bytes_of(entry))


def test_the_parts_of_all_ranks_are_the_whole(memory: HealingMemory) -> None:
    got = [torch.arange(5, dtype=torch.int16), torch.arange(6.0).view(2, 3).t(), torch.tensor(7.0)]
    kept = []
    for rank in range(3):
        log = CollectivesLog(path_of(memory, log=rank), SIZE)
        log.start(0)
        log.append(1, 5, 0, got, rank, 3)
        kept += [log.bytes_of(entry) for entry in log.entries()]
    again = [torch.zeros_like(tensor) for tensor in got]

    assert fill_from_bytes(again, b"".join(kept))
    assert all(map(torch.equal, again, got))
    assert max(part.nbytes for part in kept) - min(part.nbytes for part in kept) <= 1
