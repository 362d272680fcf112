"""Whatever a command is given in place of a run: one line, the right exit code, nothing written."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from supervisor.cli.main import main
from supervisor.storage.run.run_state import RunState, save_run_state
from tests.cli.conftest import Cli, make_run, seen

READS = (
    "report RUN --format md",
    "watch RUN --once",
    "watch RUN --json",
    "backtest RUN",
    "prune RUN",
    "list RUN",
    "runs RUN --json",
)
"""Commands that read what is there, and write nothing."""
NEED_A_RUN = (
    *("report RUN", "report OTHER --against RUN --format md", "export RUN --to csv"),
    *("export RUN --to torch", "analyze RUN", "explain RUN", "resume RUN"),
)
OTHERS = (
    *("cases RUN", "check RUN", "quantize RUN", "diff RUN:build --input x.pt", "init RUN"),
    *("run RUN", "verify RUN", "drill RUN", "doctor RUN", "prune RUN --yes"),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Things that are no whole run, by their names."""
    monkeypatch.setenv("SUPERVISOR_CASES", str(tmp_path.parent / "cases.sqlite"))
    records = tuple(seen(step, 2.0) for step in range(30))
    make_run(tmp_path / "other", RunState(state="completed"), records)
    (tmp_path / "file").write_text("not a run")
    (tmp_path / "empty").mkdir()
    make_run(tmp_path / "half", RunState(state="interrupted"))  # run.json came, the rest did not
    for name, text in {"torn": '{"state": "comp', "number": "7", "bytes": "\x00\x01"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(text)
    newer = make_run(tmp_path / "newer", RunState(state="completed"), records)
    told = json.loads(newer.run_json.read_text())
    told |= {"versions": {"supervisor": "99.0", "python": "4.0"}, "new_field": [1], "kind": 5}
    newer.run_json.write_text(json.dumps(told))
    (tmp_path / "newer" / "events.jsonl").write_text('{"kind": "of_later", "time": 3}\n')
    goes_on = make_run(tmp_path / "goes_on", RunState(state="running"), records)
    state = RunState(
        state="running",
        script="train.py",
        host=socket.gethostname(),
        pid=os.getpid(),
        pid_created=psutil.Process().create_time(),
    )
    save_run_state(goes_on, state)
    return tmp_path


def tree(folder: Path) -> dict[Path, tuple[int, float]]:
    return {
        path: (path.lstat().st_size, path.lstat().st_mtime)
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    }


def words_of(line: str, run: str) -> list[str]:
    return [word.replace("RUN", run).replace("OTHER", "other") for word in shlex.split(line)]


def is_refused(told: tuple[int, str, str], before: object, folder: Path) -> None:
    code, out, err = told
    assert (code, out) == (64, "")
    assert err.startswith("supervisor: error: ")
    assert err.count("\n") == 1
    assert tree(folder) == before


@pytest.mark.parametrize("run", ["nowhere", "nowhere/at/all", "file", "empty", "torn"])
@pytest.mark.parametrize("line", NEED_A_RUN)
def test_what_is_no_run_is_refused(cli: Cli, folder: Path, line: str, run: str) -> None:
    before = tree(folder)

    told = cli(*words_of(line, run))

    if run == "torn" and line.startswith("report"):  # of what can be read, and it says what cannot
        assert told[0] == 0
    else:
        is_refused(told, before, folder)


@pytest.mark.parametrize("line", [*READS, *OTHERS])
def test_what_is_nowhere_is_refused(cli: Cli, folder: Path, line: str) -> None:
    before = tree(folder)

    is_refused(cli(*words_of(line, "nowhere")), before, folder)


@pytest.mark.parametrize(
    "run", ["file", "empty", "half", "torn", "number", "bytes", "newer", "goes_on"]
)
@pytest.mark.parametrize("line", READS)
def test_a_command_that_reads_answers_or_refuses_and_writes_nothing(
    cli: Cli, folder: Path, line: str, run: str
) -> None:
    before = tree(folder)

    code, out, err = cli(*words_of(line, run))

    if code == 0:
        assert out
        assert "Traceback" not in err
        assert tree(folder) == before
    else:
        is_refused((code, out, err), before, folder)
    if run == "newer":
        assert code == 0
    if run in ("half", "goes_on") and not line.startswith("backtest"):
        assert code == 0


@pytest.mark.parametrize("line", ["resume RUN", "resume RUN --from latest", "prune RUN --yes"])
def test_a_run_that_goes_on_is_left_alone(cli: Cli, folder: Path, line: str) -> None:
    before = tree(folder)

    code, _, err = cli(*words_of(line, "goes_on"))

    assert code == (64 if line.startswith("resume") else 0)
    assert ("still running" in err) == line.startswith("resume")
    assert tree(folder) == before


@contextlib.contextmanager
def without_rights(folder: Path) -> Iterator[None]:
    """The folder belongs to somebody else, who lets nobody in."""
    folder.chmod(0o000)
    before = os.geteuid()
    try:
        if before == 0:
            os.seteuid(65534)
        yield
    finally:
        os.seteuid(before)
        folder.chmod(0o700)


@pytest.mark.parametrize("line", [*READS, *NEED_A_RUN])
def test_a_run_without_rights_is_refused(cli: Cli, folder: Path, line: str) -> None:
    cli(*words_of(line, "nowhere"))  # imports before the rights are gone
    before = tree(folder)

    with without_rights(folder / "newer"):
        told = cli(*words_of(line, "newer"))

    if line.startswith(("list", "runs")):  # of a folder that shows nothing: no run is known there
        assert told[0] in (0, 64)
        assert "Traceback" not in told[2]
    else:
        is_refused(told, before, folder)


@pytest.mark.parametrize("line", [*READS, "check other/train.py", "policies", "configs", "cases"])
def test_a_reader_that_has_gone_ends_a_command_quietly(
    folder: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "other" / "train.py").write_text("import torch\n")
    reader, writer = os.pipe()
    os.close(reader)
    errors = io.StringIO()
    with os.fdopen(writer, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        monkeypatch.setattr(sys, "stderr", errors)

        code = main(words_of(line, "other"))

        monkeypatch.undo()
        with contextlib.suppress(OSError):
            closed.flush()

    assert code == 0
    assert errors.getvalue() == ""


@pytest.mark.parametrize("line", READS)
def test_an_output_that_was_closed_from_the_start_is_no_trouble(
    folder: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", None)

    assert main(words_of(line, "other")) == 0
