"""Processes that are killed, hang, are interrupted or fail, under a real `supervisor run`."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

from supervisor.storage.steps.flight_recorder import FlightReader, read_steps
from tests.scenarios import runs
from tests.scenarios.loop_styles import PRELUDE, script
from tests.scenarios.runs import differences, plain, supervisor_command, train_plainly

supervised = partial(runs.supervised, executed=True)
again = partial(runs.again, executed=True)

LOADER = "epochs over a shuffling loader"
CHECKPOINTS = ("checkpoint.every_steps=4", "checkpoint.background=false")


def test_an_exception_that_comes_once_is_survived(tmp_path: Path) -> None:
    expected = train_plainly(tmp_path / "plain", script(LOADER))

    ended = supervised(
        tmp_path / "run",
        script(LOADER),
        settings=CHECKPOINTS,
        faults="[{kind: exception, step: 10}]",
    )

    assert ended.returncode == 0
    assert [e["cause"] for e in ended.events("worker_exited")] == ["exception", "completed"]
    assert "InjectedFault" in ended.stderr
    assert differences(expected.result(), ended.result()) == []


def test_an_exception_that_comes_always_is_given_up_with_70(tmp_path: Path) -> None:
    ended = supervised(
        tmp_path / "run",
        script(LOADER),
        settings=CHECKPOINTS,
        faults="[{kind: exception, step: 10, count: 99, every: true}]",
    )

    assert ended.returncode == 70
    assert ended.events("gave_up")
    assert ended.events("run_finished")[-1]["state"] == "gave_up"


@pytest.mark.parametrize(
    "kind",
    [
        "out_of_memory",
        *(pytest.param(k, marks=pytest.mark.exhaustive) for k in ("sigsegv", "exit")),
    ],
)
def test_other_deaths_are_survived(kind: str, tmp_path: Path) -> None:
    expected = train_plainly(tmp_path / "plain", script(LOADER))

    ended = supervised(
        tmp_path / "run",
        script(LOADER),
        settings=CHECKPOINTS,
        faults=f"[{{kind: {kind}, step: 10}}]",
    )

    assert ended.returncode == 0, ended.stderr
    causes = {"sigsegv": "killed", "exit": "exception", "out_of_memory": "out_of_memory"}
    assert ended.events("worker_exited")[0]["cause"] == causes[kind]
    assert differences(expected.result(), ended.result()) == []


def test_a_hang_is_ended_with_its_stacks_and_the_run_goes_on(tmp_path: Path) -> None:
    expected = train_plainly(tmp_path / "plain", script(LOADER))

    ended = supervised(
        tmp_path / "run",
        script(LOADER),
        settings=(
            *CHECKPOINTS,
            "watchdog.hang_timeout_s=3",
            "watchdog.stack_interval_s=0.3",
            "watchdog.grace_s=1",
        ),
        faults="[{kind: hang, step: 10}]",
    )

    assert ended.returncode == 0, ended.stderr
    hang = ended.events("hang_detected")[0]
    assert any("script.py" in frame for frame in map(str, hang["frames"])), hang
    assert differences(expected.result(), ended.result()) == []


def test_sigterm_saves_and_resume_continues_exactly(tmp_path: Path) -> None:
    expected = train_plainly(tmp_path / "plain", script(LOADER))

    stopped = supervised(
        tmp_path / "run", script(LOADER), faults="[{kind: sigterm_parent, step: 10}]"
    )
    resumed = again(stopped, "resume", "run", "--set", "faults=[]")

    assert stopped.returncode == 75, stopped.stderr
    assert stopped.events("signal_received")
    assert resumed.returncode == 0, resumed.stderr
    assert [e["exactness"] for e in resumed.events("resumed")] == ["exact"]
    assert differences(expected.result(), resumed.result()) == []


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("def broken(:\n    pass\n", 1, "SyntaxError"),
        ("import a_module_that_is_missing", 1, "ModuleNotFoundError"),
        ("import sys; sys.exit('no such data')", 1, "no such data"),
        (
            "import argparse\np = argparse.ArgumentParser(); p.add_argument('--x'); p.parse_args()",
            2,
            "unrecognized arguments",
        ),
    ],
)
def test_user_errors_are_told_once_as_by_plain_python(
    text: str, code: int, said: str, tmp_path: Path
) -> None:
    expected = plain(tmp_path, text)

    ended = supervised(tmp_path, text)

    assert ended.returncode == expected.returncode == code
    assert len(ended.events("attempt_started")) == 1
    assert said in ended.stderr
    for line in expected.stderr.strip().splitlines():
        assert line in ended.stderr


def test_the_script_finds_the_world_as_with_plain_python(tmp_path: Path) -> None:
    text = (
        "import sys, os, json, torch, __main__\n"
        "class Thing: pass\n"
        "print(json.dumps([sys.argv, sys.path[0], __name__, __file__, os.getcwd(),\n"
        "    __main__.Thing is Thing, Thing.__module__, __main__.__file__, __doc__,\n"
        "    sys.stdin.read()]))\n"
    )

    expected = plain(tmp_path / "here", text, ["--run-dir", "-m", "a b"])
    ended = supervised(tmp_path / "here", text, ["--run-dir", "-m", "a b"])

    assert json.loads(ended.stdout) == json.loads(expected.stdout)


def test_all_forms_of_a_program_are_run(tmp_path: Path) -> None:
    body = PRELUDE + (
        "def loop():\n"
        "    model = make_model(); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    for _ in range(5):\n"
        "        loss = F.mse_loss(model(X), Y); optimizer.zero_grad(); loss.backward()\n"
        "        optimizer.step()\n"
        "def bare(*words): loop(); print('bare', sys.argv[1:])\n"
        "def train(run):\n"
        "    for batch in run.batches([1, 2], epochs=2): print('batch', batch)\n"
        "    run.observe(reward=1.5); loop(); print('run', run.directory)\n"
        "if __name__ == '__main__': loop(); print('module', sys.argv[1:])\n"
    )
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "training.py").write_text(body)
    said = {}

    for name, target in {
        "bare": ["package/training.py:bare", "x"],
        "train": ["package/training.py:train"],
        "module": ["-m", "package.training", "y"],
    }.items():
        done = subprocess.run(
            [*supervisor_command(), "run", "--run-dir", name, "--quiet", *target],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
        assert len(read_steps(tmp_path / name)) == 5
        said[name] = done.stdout

    assert said["bare"] == "bare ['x']\n"
    assert said["module"] == "module ['y']\n"
    assert said["train"].startswith("batch 1\nbatch 2\nbatch 1\nbatch 2\nrun ")


def test_steps_are_readable_while_the_run_goes_on_and_nothing_is_left_behind(
    tmp_path: Path,
) -> None:
    text = PRELUDE + (
        "import time\n"
        "model = make_model(); optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        "loader = DataLoader(TensorDataset(X, Y), batch_size=8, num_workers=1)\n"
        "for epoch in range(10**6):\n"
        "    for x, y in loader:\n"
        "        loss = F.mse_loss(model(x), y); optimizer.zero_grad(); loss.backward()\n"
        "        optimizer.step(); time.sleep(0.005)\n"
    )
    (tmp_path / "script.py").write_text(text)
    started = subprocess.Popen(
        [*supervisor_command(), "run", "--run-dir", "run", "script.py"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    reader = FlightReader(tmp_path / "run" / "steps" / "rank_0.steps")

    while reader.rows() < 20 and started.poll() is None:
        time.sleep(0.05)
    family = psutil.Process(started.pid).children(recursive=True)
    started.send_signal(signal.SIGKILL)
    started.wait(30)
    _, alive = psutil.wait_procs(family, timeout=30)

    steps = read_steps(tmp_path / "run")
    assert len(steps) >= 20
    assert list(steps["step"]) == list(range(len(steps)))
    assert (steps["loss"] > 0).all()
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []


def test_a_terminal_sees_what_plain_python_shows(tmp_path: Path) -> None:
    text = script("progress bar").replace("range(40)", "range(40), mininterval=0, miniters=20")
    (tmp_path / "script.py").write_text(text)

    shown = {
        name: _in_terminal([*line, "script.py", "out.pt"], tmp_path)
        for name, line in {
            "plain": [sys.executable],
            "supervised": [
                *supervisor_command(),
                "run",
                "--quiet",
                "--run-dir",
                "run",
            ],
        }.items()
    }

    bars = {name: text.count("\r") for name, text in shown.items()}
    assert bars["plain"] > 1
    assert bars["supervised"] == bars["plain"]
    assert "100%" in shown["supervised"]


def _in_terminal(line: list[str], folder: Path) -> str:
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    done = subprocess.Popen(line, cwd=folder, stdin=side, stdout=side, stderr=side)
    os.close(side)
    parts = []
    while True:
        try:
            data = os.read(main, 65536)
        except OSError:
            break
        if not data:
            break
        parts.append(data)
    done.wait(60)
    os.close(main)
    return b"".join(parts).decode()


def test_a_loop_without_an_optimizer_is_told_that_nothing_was_supervised(tmp_path: Path) -> None:
    text = """
import torch
weight = torch.nn.Linear(2, 1)
for _ in range(5):
    weight(torch.ones(3, 2)).sum().backward()
    for p in weight.parameters():
        p.data.add_(p.grad, alpha=-0.1)
        p.grad = None
"""
    ended = supervised(tmp_path, text)

    assert ended.returncode == 0, ended.stderr
    assert "5 backward passes but no step" in ended.stderr
