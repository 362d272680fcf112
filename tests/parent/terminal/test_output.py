"""What the user sees of a worker's output: the same bytes, on the same stream, at once."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import time
import tty
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from supervisor.parent.terminal.output import AttemptLog, OutputPump, read_tail
from tests.scenarios.runs import supervisor_command

DRIVER = Path(__file__).parents[1] / "supervise_plan.py"
COMPLETED = ["note", {"kind": "completed"}]
# Progress bars use carriage returns and colours; and not everything is UTF-8.
BYTES = "10%|#   |\r20%|##  |\x1b[31mred\x1b[0m\nline\r\n\x00\xff\xfe no newline"


def command(folder: Path, plan: dict[str, list[list[Any]]]) -> list[str]:
    target = folder / "plan.json"
    target.write_text(json.dumps(plan))
    return [sys.executable, str(DRIVER), str(folder / "run"), str(target), str(folder / "out")]


def read_all(fd: int) -> bytes:
    data = b""
    while True:
        try:
            piece = os.read(fd, 65536)
        except OSError:
            return data
        if not piece:
            return data
        data += piece


def test_pipes_carry_every_byte_on_its_own_stream(tmp_path: Path) -> None:
    plan = {"1": [["write", 1, BYTES], ["write", 2, "to stderr\n"], COMPLETED]}

    done = subprocess.run(command(tmp_path, plan), capture_output=True, check=False)

    assert done.returncode == 0
    assert done.stdout == BYTES.encode("latin-1")
    assert done.stderr == b"to stderr\n"


def test_the_log_holds_both_streams(tmp_path: Path) -> None:
    plan = {"1": [["write", 1, "out\n"], ["write", 2, "err\n"], COMPLETED]}

    subprocess.run(command(tmp_path, plan), capture_output=True, check=True)

    log = tmp_path / "run/logs/attempt_1/rank_0.log"
    assert sorted(log.read_text().splitlines()) == ["err", "out"]


def test_a_terminal_stays_a_terminal_of_the_same_size(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    tty.setraw(theirs)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
    plan = {"1": [["describe"], ["write", 1, BYTES], ["write", 2, "|err"], COMPLETED]}

    with subprocess.Popen(
        command(tmp_path, plan), stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        seen = read_all(ours)
    os.close(ours)

    facts = json.loads((tmp_path / "run/facts_1.json").read_text())
    assert process.returncode == 0
    assert seen == BYTES.encode("latin-1") + b"|err"
    assert facts["isatty"] == [False, True, True]
    assert facts["size"] == [77, 33]
    assert facts["unbuffered"] == os.environ.get("PYTHONUNBUFFERED")


def test_a_resized_terminal_is_resized_for_the_worker_too(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    tty.setraw(theirs)
    plan = {"1": [["wait_for_columns", 123], COMPLETED]}

    with subprocess.Popen(
        command(tmp_path, plan), stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        while not (tmp_path / "run/ready").exists() and process.poll() is None:
            time.sleep(0.02)
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 123, 0, 0))
        process.send_signal(signal.SIGWINCH)
        read_all(ours)
    os.close(ours)

    assert process.returncode == 0


def test_only_the_stream_that_is_a_terminal_becomes_one(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    tty.setraw(theirs)
    plan = {"1": [["describe"], ["write", 1, "out"], ["write", 2, "err"], COMPLETED]}

    with subprocess.Popen(
        command(tmp_path, plan), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs
    ) as process:
        os.close(theirs)
        seen = read_all(ours)
        out, _ = process.communicate()
    os.close(ours)

    facts = json.loads((tmp_path / "run/facts_1.json").read_text())
    assert (out, seen) == (b"out", b"err")
    assert facts["isatty"] == [False, False, True]


def test_standard_input_reaches_the_worker(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path, {"1": [["echo_input"], COMPLETED]}),
        input=b"yes\n",
        capture_output=True,
        check=True,
    )

    assert done.stdout == b"yes\n"


def test_a_reader_that_leaves_does_not_end_the_training(tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    plan = {"1": [["write", 1, "one\n"], ["write", 1, "two\n"], COMPLETED]}

    done = subprocess.run(
        command(tmp_path, plan), stdout=theirs, stderr=subprocess.PIPE, check=False
    )
    os.close(theirs)

    assert done.returncode == 0
    assert read_tail(tmp_path / "run/logs/attempt_1/rank_0.log") == "one\ntwo\n"


def test_a_descendant_that_holds_the_stream_does_not_hold_up_the_end(tmp_path: Path) -> None:
    with open(tmp_path / "screen", "wb") as screen:
        pump = OutputPump(
            AttemptLog(tmp_path / "log", 2**20),
            stdout_fd=screen.fileno(),
            stderr_fd=screen.fileno(),
        )
        held = os.dup(pump.stdout)
        pump.start()
        os.write(held, b"last words")
        pump.finish()
    os.close(held)

    assert (tmp_path / "screen").read_bytes() == b"last words"
    assert (tmp_path / "log").read_bytes() == b"last words"


def test_the_tail_of_a_missing_log_is_empty(tmp_path: Path) -> None:
    assert read_tail(tmp_path / "none") == ""


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
