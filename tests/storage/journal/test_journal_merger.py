from __future__ import annotations

import errno
import fcntl
import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.events.event import JournalEvent
from supervisor.storage.files.kept_writes import KEPT
from supervisor.storage.journal.journal import Journal, JournalMerger, read_journal
from supervisor.storage.run.rundir import RunDirectory
from tests.journals import event


class Killed(BaseException):
    pass


def rank_journal(rundir: RunDirectory, rank: int, start: float = 0.0) -> Journal:
    clock = itertools.count(start)
    path = rundir.rank_journal(rank)
    return Journal(path, attempt=1, rank=rank, clock=lambda: float(next(clock)))


def keys(events: list[JournalEvent]) -> list[tuple[int | None, int | None]]:
    return [(event.rank, event.step) for event in events]


def test_ranks_are_merged_by_time_and_only_once(tmp_path: Path) -> None:
    rundir = RunDirectory(tmp_path)
    one, two = rank_journal(rundir, 0), rank_journal(rundir, 1, start=0.5)
    merger = JournalMerger(rundir, clock=lambda: 9.0)

    for step in range(2):
        one.write(event("risk", step=step))
        two.write(event("risk", step=step))
    first = merger.merge()
    again = merger.merge()
    merger.write(event("run_finished", state="completed"))
    one.write(event("risk", step=2))
    third = merger.merge()
    merger.close()

    assert keys(first) == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert again == []
    assert keys(third) == [(0, 2)]
    assert keys(read_journal(rundir.journal)) == [*keys(first), (None, None), (0, 2)]


def test_a_line_is_merged_when_it_is_complete(tmp_path: Path) -> None:
    rundir = RunDirectory(tmp_path)
    rank_journal(rundir, 0).write(event("risk", step=0))
    line = rundir.rank_journal(0).read_bytes()
    rundir.rank_journal(0).write_bytes(line + line[:20])
    with JournalMerger(rundir) as merger:
        before = keys(merger.merge())

        rundir.rank_journal(0).write_bytes(line + line)

        assert (before, keys(merger.merge())) == ([(0, 0)], [(0, 0)])


def test_a_torn_line_in_a_rank_file_is_passed_over(tmp_path: Path) -> None:
    rundir = RunDirectory(tmp_path)
    rank_journal(rundir, 0).write(event("risk", step=0))
    with open(rundir.rank_journal(0), "ab") as file:
        file.write(b'{"kind": "ri')
    rank_journal(rundir, 0, start=5.0).write(event("risk", step=1))

    with JournalMerger(rundir) as merger:
        merged = merger.merge()

    assert keys(merged) == [(0, 0), (0, 1)]


def test_a_second_merger_keeps_its_hands_off_while_the_first_lives(tmp_path: Path) -> None:
    rundir = RunDirectory(tmp_path)
    rank_journal(rundir, 0).write(event("risk", step=0))
    parent, command = JournalMerger(rundir), JournalMerger(rundir)
    parent.write(event("run_started"))

    while_alive = (command.merge(), command.write(event("warning")))
    parent.close()
    after = command.merge()
    command.close()

    assert while_alive == ([], False)
    assert keys(after) == [(0, 0)]


def test_a_disk_without_locks_has_a_journal_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)

    with JournalMerger(RunDirectory(tmp_path)) as merger:
        assert merger.write(event("run_started"))


@pytest.mark.parametrize("kill_at", range(6))
def test_a_parent_killed_in_mid_merge_loses_and_doubles_nothing(
    kill_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rundir = RunDirectory(tmp_path)
    one, two = rank_journal(rundir, 0), rank_journal(rundir, 1, start=0.5)
    for step in range(3):
        one.write(event("risk", step=step))
        two.write(event("risk", step=step))
    real_write = os.write
    written = 0

    def write_a_part(fd: int, data: bytes) -> int:
        nonlocal written
        if written == kill_at:
            raise Killed
        written += 1
        return real_write(fd, data[:97])

    parent = JournalMerger(rundir)
    monkeypatch.setattr(os, "write", write_a_part)
    with pytest.raises(Killed):
        parent.merge()
    monkeypatch.setattr(os, "write", real_write)
    parent.close()  # as the kernel does
    one.write(event("risk", step=3))
    with JournalMerger(rundir) as heir:
        heir.merge()

    ranks = [[s for rank, s in keys(read_journal(rundir.journal)) if rank == r] for r in (0, 1)]
    assert ranks == [[0, 1, 2, 3], [0, 1, 2]]


def test_a_full_disk_delays_what_is_written_and_not_what_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rundir = RunDirectory(tmp_path)
    rank_journal(rundir, 0).write(event("risk", step=0))
    merger = JournalMerger(rundir)
    merger.write(event("run_started"))
    real_write = os.write
    calls = itertools.count()

    def fill(fd: int, data: bytes) -> int:
        if next(calls):
            raise OSError(28, "No space left on device")
        return real_write(fd, data[:30])

    monkeypatch.setattr(os, "write", fill)
    while_full = merger.merge()
    monkeypatch.setattr(os, "write", real_write)
    KEPT.try_again(now=True)
    after = merger.merge()
    merger.close()

    assert keys(while_full) == [(0, 0)]
    assert after == []
    assert keys(read_journal(rundir.journal)) == [(None, None), (0, 0)]


@settings(max_examples=40, deadline=None)
@given(
    deeds=st.lists(st.sampled_from(["rank 0", "rank 1", "merge", "parent", "die"]), max_size=20),
    torn=st.integers(0, 60),
)
def test_whatever_happens_every_line_is_there_once_in_its_order(
    deeds: list[str], torn: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rundir = RunDirectory(tmp_path_factory.mktemp("run"))
    journals = [rank_journal(rundir, 0), rank_journal(rundir, 1)]
    wrote: list[list[int]] = [[], []]
    merger = JournalMerger(rundir)
    for number, deed in enumerate(deeds):
        if deed.startswith("rank"):
            rank = int(deed[-1])
            journals[rank].write(event("risk", step=number))
            wrote[rank].append(number)
        elif deed == "merge":
            merger.merge()
        elif deed == "parent":
            merger.write(event("warning", step=number))
        else:
            merger.close()
            if rundir.journal.exists():
                data = rundir.journal.read_bytes()
                last = data.rstrip(b"\n").rfind(b"\n") + 1
                if b'"rank": null' not in data[last:]:  # as if it had died within this line
                    rundir.journal.write_bytes(data[: max(last, len(data) - torn)])
            merger = JournalMerger(rundir)
    merger.merge()
    merger.close()

    found = keys(read_journal(rundir.journal))
    assert [[step for rank, step in found if rank == r] for r in (0, 1)] == wrote
