"""Several `supervisor run` at the same moment: none shares a directory with another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

from supervisor.storage.run.lease import this_process

LAUNCHES = 6
NO_REPORT = ("--set", "report.enabled=false", "--set", "restart.backoff_s=0.05")
# Does not end before all have begun: so all of them are alive in the same moment.
SCRIPT = """
import os, pathlib, signal, sys, time
me, count = sys.argv[1], int(sys.argv[2])
first = not pathlib.Path(f"began_{me}").exists()
pathlib.Path(f"began_{me}").touch()
while len(list(pathlib.Path(".").glob("began_*"))) < count:
    time.sleep(0.02)
if first and int(me) % 2:
    os.kill(os.getpid(), signal.SIGKILL)
print("I am", me)
"""


def launch(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "supervisor.cli.main", "run", *NO_REPORT, *words],
        cwd=folder,
        env={**os.environ, "SUPERVISOR_CASES": str(folder / "cases.sqlite")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_launches_of_one_second_have_a_directory_each_also_when_workers_are_killed(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)

    started = [launch(tmp_path, "train.py", str(n), str(LAUNCHES)) for n in range(LAUNCHES)]
    ended = [(process.communicate(timeout=300), process.returncode) for process in started]

    assert [code for _, code in ended] == [0] * LAUNCHES, ended
    runs = sorted((tmp_path / "runs").iterdir())
    assert len(runs) == LAUNCHES
    owners = [json.loads((run / "run.json").read_text())["arguments"][0] for run in runs]
    assert sorted(owners) == [str(n) for n in range(LAUNCHES)]
    for run, owner in zip(runs, owners, strict=True):
        log = "".join(path.read_text() for path in run.glob("logs/attempt_*/rank_0.log"))
        assert log.count("I am") == 1
        assert f"I am {owner}\n" in log
        kinds = [
            json.loads(line)["kind"] for line in (run / "events.jsonl").read_text().splitlines()
        ]
        assert kinds.count("attempt_started") == (2 if int(owner) % 2 else 1)


def test_of_two_launches_into_one_directory_one_is_refused_with_64(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time; time.sleep(3); print('trained')")

    started = [launch(tmp_path, "--run-dir", "X", "train.py") for _ in range(4)]
    ended = [(process.communicate(timeout=300), process.returncode) for process in started]

    assert sorted(code for _, code in ended) == [0, 64, 64, 64], ended
    for (out, err), code in ended:
        if code == 64:
            assert out == ""
            assert err.startswith("supervisor: error: ")
            assert "--run-dir" in err
    assert (tmp_path / "X" / "logs" / "attempt_1" / "rank_0.log").read_text() == "trained\n"


def test_a_run_that_is_alive_on_another_host_is_resumed_only_by_force(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; print('trained'); sys.exit(3)")
    launch(tmp_path, "--run-dir", "X", "train.py").communicate(timeout=300)
    elsewhere = asdict(replace(this_process(), host="node7", boot_id="another boot", token="x"))
    (tmp_path / "X" / "lease.json").write_text(json.dumps(elsewhere))

    line = [sys.executable, "-m", "supervisor.cli.main", "resume", "X"]
    refused, forced = (
        subprocess.run([*line, *more], cwd=tmp_path, capture_output=True, text=True, timeout=300)
        for more in ([], ["--force"])
    )

    assert refused.returncode == 64
    assert "host node7" in refused.stderr
    assert "s ago" in refused.stderr
    assert "--force" in refused.stderr
    assert (forced.returncode, forced.stdout) == (3, "trained\n"), forced.stderr
