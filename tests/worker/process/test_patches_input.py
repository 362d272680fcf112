"""Who reads standard input reads what is kept; the stream stays Python's own."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

BEGIN = """
import io, os, sys
from supervisor.worker.process.patches_input import KeptInput
KeptInput(*sys.argv[1:3]).install(now=False)
"""


def run(text: str, *arguments: object, fed: bytes = b"") -> tuple[str, bytes]:
    """Returns what a script printed, and what it has left in the user's own pipe."""
    read, write = os.pipe()
    os.write(write, fed)
    os.close(write)
    line = [sys.executable, "-c", text, *map(str, arguments)]
    done = subprocess.run(line, stdin=read, capture_output=True, text=True)
    left = os.read(read, 1000)
    os.close(read)
    return done.stdout + done.stderr[-500:], left


def test_the_users_pipe_is_read_by_nobody_and_the_stream_is_pythons(tmp_path: Path) -> None:
    (tmp_path / "relay").write_text("kept\nlines\n")
    (tmp_path / "asks").touch()
    text = BEGIN + (
        "print(type(sys.stdin.buffer.raw) is io.FileIO, sys.stdin.fileno(), sys.stdin.isatty())\n"
        "with open(sys.argv[1], 'rb', 0) as other: print(other.read(4), other.readall())\n"
        "assert not os.path.getsize(sys.argv[2])\n"  # another file is no input
        "print(next(sys.stdin), sys.stdin.read(), io.FileIO.readinto)"
    )

    told, left = run(text, tmp_path / "relay", tmp_path / "asks", fed=b"the user's\n")

    first, second, *rest = told.splitlines()
    assert first == "True 0 False"
    assert second == "b'kept' b'\\nlines\\n'"
    assert rest == ["kept", " lines", " <method 'readinto' of '_io.FileIO' objects>"]
    assert left == b"the user's\n"
    assert (tmp_path / "asks").read_text() == "."


def test_one_of_several_ranks_is_told_that_it_cannot_read(tmp_path: Path) -> None:
    for reads in ("sys.stdin.readline()", "os.read(0, 9)", "open('/dev/stdin')", "input()"):
        told, _ = run(BEGIN + reads, "", "")

        assert "which several ranks cannot share" in told, reads


ANSWERS = """
import pathlib, sys
from supervisor.worker.outside_draws.outside_draws import OUTSIDE
from supervisor.worker.process.patches_input import keep_answers
OUTSIDE.install(pathlib.Path(sys.argv[1]), resumes=sys.argv[2] == "resumes")
keep_answers()
print([input("width? ") for _ in range(2)])
"""


def test_what_a_person_has_answered_is_given_again_in_a_replay(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, "12\nzwölf\n".encode())
    line = [sys.executable, "-c", ANSWERS, str(tmp_path / "tape" / "rank_0.outside")]
    first = subprocess.run([*line, "begins"], stdin=theirs, capture_output=True, text=True)
    os.close(ours)
    os.close(theirs)

    again = subprocess.run(
        [*line, "resumes"], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )

    assert "['12', 'zwölf']" in first.stdout, first.stderr
    assert again.stdout == "['12', 'zwölf']\n", again.stderr
