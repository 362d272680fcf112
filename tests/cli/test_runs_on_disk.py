"""Commands that read runs: list, watch, export, backtest, report, cases."""

from __future__ import annotations

import json
import math
import socket
import stat
from pathlib import Path

import pytest

from supervisor.cli.watch.panel import chart
from supervisor.storage.cases.case_advisor import Case
from supervisor.storage.cases.cases import CaseLibrary
from supervisor.storage.journal.journal import Journal
from supervisor.storage.run.run_state import RunState
from supervisor.storage.run.rundir import RunDirectory
from tests.cli.conftest import Cli, make_run, seen
from tests.journals import event

RECORDS = (seen(0, 2.5, lr=0.1), seen(1, math.nan), seen(1, 2.25), seen(2, math.inf, batch_size=8))


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    state = RunState(
        state="completed", script="train.py", started_at="2026-01-02T03:04:05+00:00", attempts=2
    )
    return make_run(tmp_path / "runs" / "a", state, RECORDS)


# list


def test_list_shows_runs_newest_first_and_damaged_ones_too(
    cli: Cli, run: RunDirectory, tmp_path: Path
) -> None:
    newer = RunState(state="interrupted", script="b.py", started_at="2026-02-02T00:00:00+00:00")
    make_run(tmp_path / "runs" / "b", newer)
    broken = tmp_path / "runs" / "c"
    broken.mkdir()
    (broken / "run.json").write_text("{")

    code, out, _ = cli("list", "--json")

    listed = json.loads(out)
    assert code == 0
    assert [entry["name"] for entry in listed] == ["b", "a", "c"]
    assert [entry["state"] for entry in listed] == ["interrupted", "completed", "unreadable"]
    assert listed[1]["last_step"] == 2


def test_list_says_when_a_runs_supervisor_is_gone(cli: Cli, tmp_path: Path) -> None:
    # Process 1 exists and was not made at this time.
    state = RunState(state="running", host=socket.gethostname(), pid=1, pid_created=1.0)
    make_run(tmp_path / "runs" / "a", state)

    _, out, _ = cli("list")

    assert "died" in out


def test_list_without_runs_says_how_to_start_one(cli: Cli) -> None:
    code, out, _ = cli("list")

    assert code == 0
    assert "supervisor run train.py" in out


# export and backtest


def test_an_exported_csv_is_a_trace_for_backtest(cli: Cli, run: RunDirectory) -> None:
    exported = cli("export", "runs/a", "--to", "csv")
    code, out, _ = cli("backtest", "runs/a/steps.csv", "--json")

    text = (run.root / "steps.csv").read_text()
    assert exported[0] == code == 0
    assert text.splitlines()[0].startswith("step,loss,grad_norm,lr,loss_scale")
    assert text.splitlines()[1].startswith("0,2.5,,0.1,,")
    assert text.splitlines()[2].startswith("1,2.25,,")
    assert text.splitlines()[3].startswith("2,inf,,")
    assert stat.S_IMODE((run.root / "steps.csv").stat().st_mode) == 0o600
    assert json.loads(out)["steps"] == 3


def test_export_without_a_step_says_so(cli: Cli, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a", RunState())

    code, _, err = cli("export", "runs/a", "--to", "csv")

    assert code == 64
    assert "has recorded no step" in err


def test_backtest_takes_policy_and_config(cli: Cli, tmp_path: Path) -> None:
    rows = [f"{step},{2.0 if step < 60 else 'nan'}" for step in range(62)]
    (tmp_path / "trace.csv").write_text("step,loss\n" + "\n".join(rows) + "\n")

    code, out, _ = cli("backtest", "trace.csv", "--policy", "observe_only", "--config", "sensitive")

    assert code == 0
    assert out.startswith("62 steps, 1 alarm,")
    assert "ALARM AT" in out


# watch


def test_watch_shows_the_end_of_a_run_and_ends(cli: Cli, run: RunDirectory) -> None:
    journal = Journal(run.journal, attempt=2, rank=0)
    journal.write(event("alert", step=1, message="loss is [bold]nan"))
    journal.write(event("action", step=1, name="rollback", detail="to step 0"))
    journal.close()

    code, out, err = cli("watch", "runs/a")

    assert (code, err) == (0, "")
    assert "completed" in out
    assert "loss is [bold]nan" in out
    assert "rollback: to step 0" in out


def test_watch_shows_a_run_without_a_step(cli: Cli, tmp_path: Path) -> None:
    make_run(tmp_path / "a", RunState())

    code, out, _ = cli("watch", "a", "--once")

    assert code == 0
    assert "no step yet" in out


def test_the_demo_shows_a_frame_without_a_run(cli: Cli) -> None:
    code, out, _ = cli("watch", "--demo", "--once")

    assert code == 0
    assert "demo (simulated)" in out
    assert "risk" in out


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], ""),
        ([1.0], "▁"),
        ([0.0, 1.0], "▁█"),
        ([0.0, math.nan, 1.0], "▁×█"),
        ([math.inf], "×"),
        ([0.0, 3.0, 1.0, 2.0], "█▆"),
    ],
)
def test_a_sparkline_shows_the_largest_and_what_is_not_finite(
    values: list[float], expected: str
) -> None:
    assert chart(values, max(1, len(expected)), 1) == [expected]


# report


def test_report_says_where_the_document_is(cli: Cli, run: RunDirectory) -> None:
    assert cli("report", "runs/a") == (0, f"{run.report / 'report.html'}\n", "")
    assert (run.report / "report.html").is_file()


def test_report_prints_the_format_that_is_asked_for_and_writes_nothing(
    cli: Cli, run: RunDirectory
) -> None:
    code, out, errors = cli("report", "runs/a", "--format", "md")

    assert (code, errors) == (0, "")
    assert out.startswith("## ")
    assert not run.report.exists()


def test_report_writes_the_format_of_the_output(
    cli: Cli, run: RunDirectory, tmp_path: Path
) -> None:
    code, out, _ = cli("report", "runs/a", "--output", "mine.json")

    assert (code, out) == (0, "mine.json\n")
    assert json.loads((tmp_path / "mine.json").read_text())["verdict"]


def test_a_report_that_cannot_be_written_can_be_printed(cli: Cli, run: RunDirectory) -> None:
    run.report.touch()  # a file where the folder belongs; root may write into any folder

    code, _, errors = cli("report", "runs/a")

    assert code == 64
    assert "print it with --format" in errors
    assert cli("report", "runs/a", "--format", "md")[0] == 0


def test_a_report_folder_that_is_a_link_is_not_followed(
    cli: Cli, run: RunDirectory, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run.report.symlink_to(elsewhere)

    code, _, errors = cli("report", "runs/a")

    assert code == 64
    assert "symbolic link" in errors
    assert not list(elsewhere.iterdir())
    assert cli("report", "runs/a", "--format", "md")[0] == 0


def test_a_log_that_is_a_link_is_not_read(cli: Cli, run: RunDirectory, tmp_path: Path) -> None:
    (tmp_path / "private.txt").write_text("what others must not see")
    run.make(run.log(1, 0).parent)
    run.log(1, 0).symlink_to(tmp_path / "private.txt")

    _, out, _ = cli("report", "runs/a", "--format", "md")

    assert "must not see" not in out
    assert "not followed" in out


def test_list_writes_out_what_would_steer_a_terminal(cli: Cli, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "b", RunState(script="\x1b]0;title\x07x.py", state="completed"))

    _, out, _ = cli("list")

    assert "\x1b" not in out
    assert "\\x1b]0;title\\x07x.py" in out


def test_a_name_that_is_too_long_is_said(cli: Cli) -> None:
    for words in (["report"], ["watch", "--once"], ["resume"], ["list"], ["run"]):
        code, _, errors = cli(*words, 300 * "x")

        assert code == 64
        assert errors.startswith("supervisor: error: ")


def test_report_says_when_the_output_cannot_be_written(
    cli: Cli, run: RunDirectory, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()

    code, _, err = cli("report", "runs/a", "--output", "file/mine.md")

    assert code == 64
    assert "give another path" in err


# cases


def test_cases_are_listed_and_filtered_by_folder(cli: Cli, tmp_path: Path) -> None:
    library = CaseLibrary()
    library.add(Case(cause="spike", treatment="rollback", run=str(tmp_path / "runs" / "a")))
    library.add(Case(cause="hang", treatment="restart", run="/elsewhere/b"))

    everything = json.loads(cli("cases", "--json")[1])
    here = json.loads(cli("cases", "runs", "--json")[1])
    table = cli("cases")[1]

    assert [case["cause"] for case in everything] == ["spike", "hang"]
    assert [case["cause"] for case in here] == ["spike"]
    assert "rollback" in table


def test_without_a_case_the_table_says_so(cli: Cli) -> None:
    code, out, _ = cli("cases")

    assert code == 0
    assert "no case yet" in out


# policies, configs, check


@pytest.mark.parametrize("command", ["policies", "configs"])
def test_shipped_files_are_listed_with_what_they_are_for(cli: Cli, command: str) -> None:
    listed = json.loads(cli(command, "--json")[1])
    table = cli(command)[1]

    assert {"name", "description", "path"} <= set(listed[0])
    assert listed[0]["name"] == "default"
    assert all(entry["description"] in table for entry in listed)


BAD = """\
import torch

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler()
for batch in range(3):
    with torch.autocast("cuda"):
        loss = model(torch.ones(2)).sum()
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""
"""Clips gradients that are still scaled."""


def test_check_ends_with_1_when_there_is_something_to_say(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(BAD)
    (tmp_path / "good.py").write_text("x = 1\n")

    bad = cli("check", "bad.py", "--json")
    good = cli("check", "good.py")

    assert bad[0] == 1
    assert json.loads(bad[1])["findings"][0]["path"] == "bad.py"
    assert good[0] == 0
