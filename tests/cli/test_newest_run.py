"""Without a RUN the newest is taken, and it is said which."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from supervisor.cli.commands import resume
from supervisor.storage.run.run_state import RunState
from tests.cli.conftest import Cli, make_run, seen


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Four runs; their names and their folders' times say nothing of which is the newest."""
    created = psutil.Process().create_time()
    alive = {"host": socket.gethostname(), "pid": os.getpid(), "pid_created": created}
    for name, state in {
        "d_oldest": RunState(state="gave_up", started_at="2026-01-01T00:00:00+00:00"),
        "c-failed": RunState(state="interrupted", started_at="2026-01-02T00:00:00+00:00"),
        "b_goes_on": RunState(state="running", started_at="2026-01-03T00:00:00+00:00", **alive),  # type: ignore[arg-type]
        "a-newest": RunState(state="completed", started_at="2026-01-04T00:00:00+00:00"),
    }.items():
        make_run(tmp_path / "runs" / name, state, (seen(0, 1.0),))
    (tmp_path / "runs" / "z_no_run").mkdir()
    (tmp_path / "runs" / "y_torn").mkdir()
    (tmp_path / "runs" / "y_torn" / "run.json").write_text("{")
    return tmp_path / "runs"


@pytest.mark.parametrize("line", ["report --format md", "watch --once", "watch --json"])
def test_who_looks_gets_the_newest(cli: Cli, runs: Path, line: str) -> None:
    code, out, err = cli(*line.split())

    assert code == 0
    assert "a-newest" in out
    assert err == "supervisor: runs/a-newest (the newest run)\n"


def test_who_goes_on_gets_the_newest_that_can(
    cli: Cli, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[SimpleNamespace] = []
    monkeypatch.setattr(resume, "continue_run", lambda args: taken.append(args) or 75)

    code, _, err = cli("resume")

    assert (code, taken[0].run) == (75, Path("runs/c-failed"))
    assert err == "supervisor: runs/c-failed (the newest run that can be continued)\n"


@pytest.mark.parametrize("line", ["report", "watch --once", "resume"])
def test_without_any_run_it_is_said_what_to_do(cli: Cli, line: str) -> None:
    code, out, err = cli(*line.split())

    assert (code, out) == (64, "")
    assert "name one, see `supervisor list`, or start one with `supervisor run`" in err
    assert not Path("runs").exists()
