"""The log of an attempt stays within its limit, and says what it lacks."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from supervisor.parent.terminal.attempt_log import AttemptLog
from supervisor.parent.terminal.output import read_tail
from tests.scenarios.runs import supervisor_command

LIMIT = 65_536
MARK = re.compile(rb"\[supervisor: (\d+) bytes of output were left out here\]\n")


def test_a_small_output_is_kept_as_it_is(tmp_path: Path) -> None:
    log = AttemptLog(tmp_path / "logs" / "log", LIMIT)

    for number in range(1000):
        log.write(b"%d\n" % number)
    log.close()

    assert (tmp_path / "logs" / "log").read_bytes() == b"".join(b"%d\n" % n for n in range(1000))


def test_a_flood_keeps_its_beginning_and_its_end_and_the_count_of_the_rest(tmp_path: Path) -> None:
    log = AttemptLog(tmp_path / "log", LIMIT)
    lines = [b"line %d of a flood\n" % number for number in range(40_000)]

    largest = 0
    for line in lines:
        log.write(line)
        largest = max(largest, (tmp_path / "log").stat().st_size)
    log.close()

    head, left_out, tail = MARK.split((tmp_path / "log").read_bytes())
    said = b"".join(lines)
    assert largest <= LIMIT
    assert min(len(head), len(tail)) > LIMIT / 5
    assert said.startswith(head)
    assert said.endswith(tail)
    assert head.endswith(b"\n")
    assert tail.startswith(b"line ")
    assert len(head) + int(left_out) + len(tail) == len(said)
    assert read_tail(tmp_path / "log").endswith(lines[-1].decode())


@given(st.lists(st.binary(max_size=9000).filter(lambda data: b"[sup" not in data), max_size=60))
def test_any_output_is_kept_up_to_what_is_counted(pieces: list[bytes]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        log = AttemptLog(path, LIMIT)
        for piece in pieces:
            log.write(piece)
        log.close()
        parts = MARK.split(path.read_bytes())

    said = b"".join(pieces)
    if len(parts) == 1:
        assert parts[0] == said
    else:
        head, left_out, tail = parts
        assert said.startswith(head)
        assert said.endswith(tail)
        assert len(head) + int(left_out) + len(tail) == len(said)


def test_the_terminal_sees_all_of_a_flood_and_the_log_its_ends(tmp_path: Path) -> None:
    (tmp_path / "flood.py").write_text("for n in range(60_000): print(f'line {n} of a flood')\n")
    options = ["--quiet", "--run-dir", "run", "--set=limits.log_mib=0.25"]

    done = subprocess.run(
        [*supervisor_command(), "run", *options, "--set=report.enabled=false", "flood.py"],
        cwd=tmp_path,
        capture_output=True,
        timeout=120,
        check=True,
    )

    log = tmp_path / "run" / "logs" / "attempt_1" / "rank_0.log"
    assert done.stdout == b"".join(b"line %d of a flood\n" % n for n in range(60_000))
    assert log.stat().st_size <= 2**18
    assert len(MARK.findall(log.read_bytes())) == 1
    assert log.read_bytes().endswith(b"line 59999 of a flood\n")
