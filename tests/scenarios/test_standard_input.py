"""What comes on standard input comes again after a kill."""

import os
import random
import stat
import subprocess
from pathlib import Path

import pytest

from tests.scenarios.runs import Ended, again, differences, plain, supervised, supervisor_command

SCRIPT = """
import json, os, sys, torch
torch.manual_seed(0)
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
READ
for step, line in enumerate(rows):
    x = torch.tensor([float(v) for v in line.split()]).view(-1, 8)
    loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("trained on", step + 1)
torch.save(net.state_dict(), sys.argv[1])
"""
READS = {
    "line by line": "rows = sys.stdin",
    "at once": "rows = sys.stdin.read().splitlines()",
    "input": "rows = iter(lambda: input() or None, None)\nrows = [next(rows) for _ in range(30)]",
    "by descriptor": (
        "data = b''\nwhile page := os.read(0, 100): data += page\nrows = data.decode().splitlines()"
    ),
    "by name": "rows = open('/dev/stdin').read().splitlines()",
    "bytes": "rows = [line.decode() for line in sys.stdin.buffer]",
}
KILLED = "[{kind: sigkill, step: 20}]"
EVERY = ("checkpoint.every_steps=7", "checkpoint.background=false")  # on disk before the kill


def rows(count: int = 30) -> str:
    draw = random.Random(1)
    return "".join(
        " ".join(f"{draw.gauss(0, 1):.4f}" for _ in range(8)) + "\n" for _ in range(count)
    )


def script(read: str = READS["line by line"]) -> str:
    return SCRIPT.replace("READ", read)


@pytest.mark.parametrize(
    "how",
    [
        "line by line",
        *(pytest.param(h, marks=pytest.mark.exhaustive) for h in list(READS)[1:]),
    ],
)
def test_a_pipe_is_read_again_from_its_beginning_after_a_kill(tmp_path: Path, how: str) -> None:
    text = script(READS[how])
    there = plain(tmp_path / "plain", text, fed=rows())

    ended = supervised(tmp_path / "run", text, fed=rows(), settings=EVERY, faults=KILLED)

    assert ended.returncode == there.returncode == 0, ended.stderr
    assert there.stdout.strip() in ended.stdout
    assert differences(ended.result(), there.result()) == []
    assert [e["exactness"] for e in ended.events("resumed")] == ["exact"]
    kept = ended.run_dir / "input" / "data"
    assert kept.read_text() == rows()
    assert stat.S_IMODE(os.stat(kept).st_mode) == 0o600


def test_a_file_is_put_back_to_where_the_run_began_in_it_and_is_not_copied(tmp_path: Path) -> None:
    there = plain(tmp_path / "plain", script(), fed=rows())
    data = tmp_path / "data.txt"
    data.write_text("a first line that somebody else has read\n" + rows())

    with data.open("rb", buffering=0) as file:
        file.seek(len("a first line that somebody else has read\n"))
        ended = started(tmp_path / "run", script(), file.fileno())

    assert ended.returncode == 0, ended.stderr
    assert differences(ended.result(), there.result()) == []
    assert not (ended.run_dir / "input" / "data").exists()


def test_a_resume_reads_what_was_kept_without_the_pipe(tmp_path: Path) -> None:
    text = script(READS["at once"])
    there = plain(tmp_path / "plain", text, fed=rows())
    asked = supervised(
        tmp_path / "run",
        text,
        fed=rows(),
        settings=EVERY,
        faults="[{kind: sigterm_parent, step: 20}]",
    )
    assert asked.returncode == 75, asked.stderr

    ended = again(asked, "resume", "run", fed="")

    assert ended.returncode == 0, ended.stderr
    assert differences(ended.result(), there.result()) == []


def test_a_pipe_longer_than_is_kept_is_said_at_once_and_not_trained_without(tmp_path: Path) -> None:
    limit = (*EVERY, "limits.stdin_mib=0.001")

    ended = supervised(tmp_path, script(), fed=rows(), settings=limit, faults=KILLED)

    assert ended.returncode == 70
    assert "limits.stdin_mib" in ended.stderr
    assert len(ended.events("attempt_started")) == 1
    assert not (tmp_path / "out.pt").exists()


def test_a_loop_of_the_shell_keeps_its_list(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('ran')\n")
    line = " ".join([*supervisor_command(), "run --set report.enabled=false --run-dir $name"])

    done = subprocess.run(
        ["sh", "-c", f"printf 'one\\ntwo\\n' | while read name; do {line} script.py; done"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "SUPERVISOR_CASES": str(tmp_path / ".cases.sqlite")},
    )

    assert done.stdout.split() == ["ran", "ran"], done.stderr


def test_a_closed_input_is_closed_for_the_script_too(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys\nprint(sys.stdin)\n")
    line = " ".join([*supervisor_command(), "run --set report.enabled=false --run-dir run"])

    done = subprocess.run(
        ["sh", "-c", f"{line} script.py <&-"], cwd=tmp_path, capture_output=True, text=True
    )

    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr


def started(folder: Path, text: str, stdin: int) -> Ended:
    folder.mkdir()
    (folder / "script.py").write_text(text)
    line = [*supervisor_command(), "run", "--run-dir", "run", "--set", "restart.backoff_s=0.05"]
    for setting in (*EVERY, "report.enabled=false", f"faults={KILLED}"):
        line += ["--set", setting]
    done = subprocess.run(
        [*line, "script.py", "out.pt"],
        cwd=folder,
        stdin=stdin,
        capture_output=True,
        text=True,
        env={**os.environ, "SUPERVISOR_CASES": str(folder / ".cases.sqlite")},
    )
    return Ended(folder, done.returncode, done.stdout, done.stderr)
