"""What comes on standard input is kept, and given to each attempt from its beginning."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.parent.standard_input import StandardInput, not_for_ranks
from supervisor.storage.run.rundir import RunDirectory

TEXT = b"".join(b"line %d of the input\n" % n for n in range(1000))


@pytest.fixture
def own_input() -> Iterator[Callable[[int], None]]:
    """Makes a descriptor this process's standard input, until the test ends."""
    before = os.dup(0)

    def take(descriptor: int) -> None:
        os.dup2(descriptor, 0)
        os.close(descriptor)

    yield take
    os.dup2(before, 0)
    os.close(before)


def piped(own_input: Callable[[int], None], data: bytes, *, ends: bool = True) -> int:
    read, write = os.pipe()
    own_input(read)
    os.write(write, data)
    if ends:
        os.close(write)
    return write


def begun(kept: StandardInput) -> int:
    """As the worker does at its first read; returns what it reads from."""
    relay, asks, *_ = kept.paths
    descriptor, question = os.open(relay, os.O_RDONLY), os.open(asks, os.O_WRONLY)
    os.write(question, b".")
    os.close(question)
    return descriptor


def read_all(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def test_nothing_is_taken_from_a_pipe_that_the_script_does_not_read(
    tmp_path: Path, own_input: Callable[[int], None]
) -> None:
    piped(own_input, TEXT)
    kept = StandardInput(RunDirectory(tmp_path), 1.0)

    kept.begin_attempt()
    kept.end_attempt()

    assert os.read(0, len(TEXT) + 1) == TEXT


def test_a_pipe_read_in_part_is_given_again_from_its_beginning(
    tmp_path: Path, own_input: Callable[[int], None]
) -> None:
    piped(own_input, TEXT)
    kept = StandardInput(RunDirectory(tmp_path), 1.0)
    kept.begin_attempt()
    first = begun(kept)
    assert os.read(first, 100) == TEXT[:100]
    os.close(first)
    kept.end_attempt()

    kept.begin_attempt()
    found = read_all(begun(kept))
    kept.end_attempt()

    assert found == TEXT
    assert kept.refused() == ""


def test_more_than_is_kept_is_handed_through_and_no_later_attempt_begins(
    tmp_path: Path, own_input: Callable[[int], None]
) -> None:
    piped(own_input, TEXT)
    kept = StandardInput(RunDirectory(tmp_path), 0.001)
    kept.begin_attempt()

    found = read_all(begun(kept))
    kept.end_attempt()

    assert found == TEXT
    assert "limits.stdin_mib" in kept.news()[0]
    assert "limits.stdin_mib" in kept.refused()


@pytest.mark.parametrize("again", ["the same", "another", "nothing"])
def test_a_resume_of_a_pipe_read_in_part_needs_the_same_again(
    tmp_path: Path, own_input: Callable[[int], None], again: str
) -> None:
    writer = piped(own_input, TEXT, ends=False)
    kept = StandardInput(RunDirectory(tmp_path), 1.0)
    kept.begin_attempt()
    first = begun(kept)
    while len(os.read(first, 4096)) == 4096:
        pass
    kept.end_attempt()
    os.close(first)
    os.close(writer)

    if again == "nothing":
        own_input(os.open(os.devnull, os.O_RDONLY))
    else:
        piped(own_input, TEXT if again == "the same" else TEXT.upper())
    later = StandardInput(RunDirectory(tmp_path), 1.0, is_resume=True)

    if again == "nothing":
        assert "pipe all of it in again" in later.refused()
        return
    later.begin_attempt()
    found = read_all(begun(later))
    later.end_attempt()
    assert later.is_wrong == (again == "another")
    assert found == (TEXT if again == "the same" else b"")


def test_a_file_is_put_back_to_where_the_run_began_in_it(
    tmp_path: Path, own_input: Callable[[int], None]
) -> None:
    (tmp_path / "data").write_bytes(TEXT)
    descriptor = os.open(tmp_path / "data", os.O_RDONLY)
    os.lseek(descriptor, 10, os.SEEK_SET)
    own_input(descriptor)
    kept = StandardInput(RunDirectory(tmp_path), 1.0)
    os.read(0, 50)

    kept.begin_attempt()

    assert kept.paths == ()
    assert os.lseek(0, 0, os.SEEK_CUR) == 10


def test_a_script_that_has_read_all_there_is_awaits_more(
    tmp_path: Path, own_input: Callable[[int], None]
) -> None:
    writer = piped(own_input, b"first\n", ends=False)
    kept = StandardInput(RunDirectory(tmp_path), 1.0)
    kept.begin_attempt()
    assert not kept.is_awaited  # nobody has read yet
    reads = begun(kept)

    assert os.read(reads, 100) == b"first\n"

    until = time.monotonic() + 60
    while not kept.is_awaited and time.monotonic() < until:
        time.sleep(0.01)
    assert kept.is_awaited
    kept.end_attempt()
    assert not kept.is_awaited
    os.close(reads)
    os.close(writer)


def test_several_ranks_get_none_of_a_pipe(own_input: Callable[[int], None]) -> None:
    own_input(os.open(os.devnull, os.O_RDONLY))
    assert not_for_ranks() == ()

    piped(own_input, TEXT)

    assert not_for_ranks() == ("", "")
