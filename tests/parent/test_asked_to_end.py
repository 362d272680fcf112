"""Signals to the supervisor's process: SIGTERM, SIGINT, SIGUSR1, and a second one."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from supervisor.storage.run.lease import read_holder, text_of
from tests.journals import read_raw
from tests.parent.conftest import has_ended

DRIVER = Path(__file__).with_name("supervise_plan.py")
_PATIENCE_S = 110.0


class Driven:
    """`Supervisor` over a plan in a process of its own."""

    def __init__(self, folder: Path, plan: dict[str, list[list[Any]]], *pairs: str) -> None:
        self.run_dir = folder / "run"
        self.out = folder / "out.json"
        target = folder / "plan.json"
        target.write_text(json.dumps(plan))
        command = [sys.executable, str(DRIVER), str(self.run_dir), str(target), str(self.out)]
        self.process = subprocess.Popen([*command, *pairs], start_new_session=True)

    def wait_until_ready(self, name: str = "ready") -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not (self.run_dir / name).exists():
            assert self.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def wait(self) -> int:
        return self.process.wait(_PATIENCE_S)

    def events(self, kind: str) -> list[dict[str, Any]]:
        events = read_raw(self.run_dir / "events.jsonl")
        return [event for event in events if event["kind"] == kind]


@pytest.fixture
def driven(tmp_path: Path) -> Iterator[list[Driven]]:
    started: list[Driven] = []
    yield started
    for run in started:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait()


@pytest.mark.parametrize(
    ("signum", "cause"),
    [
        (signal.SIGTERM, "interrupted"),
        (signal.SIGINT, "interrupted"),
        (signal.SIGUSR1, "preempted"),
    ],
)
def test_a_request_to_end_saves_a_checkpoint_and_exits_75(
    driven: list[Driven], tmp_path: Path, signum: int, cause: str
) -> None:
    run = Driven(tmp_path, {"1": [["save_on_sigterm"]]})
    driven.append(run)
    run.wait_until_ready()

    run.process.send_signal(signum)

    assert run.wait() == 75
    assert run.events("worker_exited")[0]["cause"] == cause
    assert run.events("signal_received")[0]["signum"] == signum
    assert json.loads((run.run_dir / "run.json").read_text())["state"] == "interrupted"


def test_without_any_checkpoint_the_code_is_that_of_the_signal(
    driven: list[Driven], tmp_path: Path
) -> None:
    run = Driven(tmp_path, {"1": [["save_on_sigterm", False]]})
    driven.append(run)
    run.wait_until_ready()

    run.process.send_signal(signal.SIGTERM)

    assert run.wait() == 128 + signal.SIGTERM


def test_a_script_that_is_ended_in_its_atexit_has_not_completed(
    driven: list[Driven], tmp_path: Path
) -> None:
    note = ["note", {"kind": "completed", "time": time.time()}]
    run = Driven(tmp_path, {"1": [["checkpoint", 4], ["steps", 0, 4], note, ["saves_results"]]})
    driven.append(run)
    run.wait_until_ready()

    run.process.send_signal(signal.SIGTERM)

    assert run.wait() == 75
    assert run.events("worker_exited")[0]["cause"] == "interrupted"


def test_a_second_signal_does_not_wait_for_the_grace_time(
    driven: list[Driven], tmp_path: Path
) -> None:
    run = Driven(tmp_path, {"1": [["ignore_sigterm"]]}, "watchdog.grace_s=3600")
    driven.append(run)
    run.wait_until_ready()

    run.process.send_signal(signal.SIGINT)
    while not run.events("signal_received"):
        time.sleep(0.02)
    run.process.send_signal(signal.SIGINT)

    assert run.wait() == 128 + signal.SIGINT


def test_a_worker_that_does_not_end_is_killed_after_the_grace_time(
    driven: list[Driven], tmp_path: Path
) -> None:
    run = Driven(tmp_path, {"1": [["ignore_sigterm"]]}, "watchdog.grace_s=0.2")
    driven.append(run)
    run.wait_until_ready()

    run.process.send_signal(signal.SIGTERM)

    assert run.wait() == 128 + signal.SIGTERM
    assert run.events("worker_exited")[0]["signum"] == signal.SIGKILL


def test_a_signal_is_heeded_between_two_attempts(driven: list[Driven], tmp_path: Path) -> None:
    plan = {"1": [["checkpoint", 1], ["steps", 0, 3], ["kill", 9]]}
    run = Driven(tmp_path, plan, "restart.backoff_s=3600", "restart.backoff_max_s=3600")
    driven.append(run)
    run.wait_until_ready("events.jsonl")
    while not run.events("restart"):
        time.sleep(0.02)

    run.process.send_signal(signal.SIGTERM)

    assert run.wait() == 75
    assert len(run.events("attempt_started")) == 1


def test_descendants_of_an_interrupted_worker_are_ended(
    driven: list[Driven], tmp_path: Path
) -> None:
    run = Driven(tmp_path, {"1": [["child"], ["save_on_sigterm"]]})
    driven.append(run)
    run.wait_until_ready()
    pid = int((run.run_dir / "child.pid").read_text())

    run.process.send_signal(signal.SIGTERM)

    assert run.wait() == 75
    assert has_ended(pid)


def test_a_run_that_another_host_took_over_is_left_without_another_word(
    driven: list[Driven], tmp_path: Path
) -> None:
    run = Driven(tmp_path, {"1": [["child"], ["save_on_sigterm"]]})
    driven.append(run)
    run.wait_until_ready()
    pid = int((run.run_dir / "child.pid").read_text())
    lease = run.run_dir / "lease.json"
    mine = read_holder(lease)
    assert mine is not None
    theirs = text_of(replace(mine, host="node7", boot_id="another", token="theirs"))
    before = {name: (run.run_dir / name).read_bytes() for name in ("events.jsonl", "run.json")}

    lease.write_text(theirs)

    assert run.wait() == 75
    assert has_ended(pid)
    assert lease.read_text() == theirs
    assert before == {name: (run.run_dir / name).read_bytes() for name in before}
    assert not (run.run_dir / "checkpoints").exists()


def test_nothing_of_the_scripts_outlives_a_supervisor_that_is_killed(
    driven: list[Driven], tmp_path: Path
) -> None:
    run = Driven(tmp_path, {"1": [["child", True], ["daemon", True], ["save_on_sigterm"]]})
    driven.append(run)
    run.wait_until_ready()
    left = [int((run.run_dir / name).read_text()) for name in ("child.pid", "daemon.pid")]
    subreaper = psutil.Process(run.process.pid).children()
    left += [process.pid for process in psutil.Process(run.process.pid).children(recursive=True)]

    run.process.kill()
    run.wait()

    assert len(subreaper) == 1
    deadline = time.monotonic() + _PATIENCE_S
    while not all(map(has_ended, left)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [pid for pid in left if not has_ended(pid)] == []


def test_a_ctrl_c_before_the_first_step_has_a_code_and_lines_of_its_own(tmp_path: Path) -> None:
    target = tmp_path / "slow.py"
    target.write_text("import os, time\nos.write(1, b'loading')\ntime.sleep(600)\n")
    ours, terminal = os.openpty()
    command = [sys.executable, "-m", "supervisor.cli.main", "run", "--run-dir", "run", str(target)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        preexec_fn=_own_terminal,
    )
    os.close(terminal)
    seen = _read_until(ours, b"loading")

    os.write(ours, b"\x03")

    seen += _read_to_the_end(ours)
    assert process.wait(_PATIENCE_S) == 128 + signal.SIGINT
    assert b"loading^C\r" in seen
    lines = seen.decode().replace("\x1b[J", "").splitlines()
    told = [line for line in lines if "supervisor:" in line]
    assert all(line.startswith("supervisor: ") for line in told)
    assert any("SIGINT: ending now" in line for line in told)
    assert (
        "supervisor: no checkpoint was made yet: a resume starts the training from the beginning"
        in told
    )
    report = (tmp_path / "run" / "report" / "report.md").read_text()
    assert "recorded no step: it had not reached its first one." in report
    assert "failed during set-up" not in report


def _own_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _read_until(fd: int, text: bytes) -> bytes:
    seen = b""
    while text not in seen:
        seen += os.read(fd, 4096)
    return seen


def _read_to_the_end(fd: int) -> bytes:
    seen = b""
    with contextlib.suppress(OSError):  # EIO: the last holder of the terminal has closed it
        while data := os.read(fd, 4096):
            seen += data
    return seen
