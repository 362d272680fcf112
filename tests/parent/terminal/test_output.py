"""What the user sees of a worker's output: the same bytes, on the same stream, at once."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import termios
import time
import tty
from pathlib import Path
from typing import Any

from supervisor.parent.terminal.attempt_log import AttemptLog
from supervisor.parent.terminal.output import OutputPump, read_tail

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
