"""What cannot be meant is refused in one line, with 64, before anything is made."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import torch

from supervisor.storage.cases.cases import CaseLibrary
from supervisor.storage.run.run_state import RunState
from tests.cli.conftest import Cli, make_run, seen

SCRIPT = "import torch\n\ndef train(run): pass\n\ndef build(): return torch.nn.Linear(2, 2)\n"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A run, a trace, a script, tensors, and things of the wrong kind; the current folder."""
    make_run(tmp_path / "run", RunState(state="completed"), (seen(0, 1.0), seen(1, 0.5)))
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "trace.csv").write_text("step,loss\n0,1\n1,0.5\n")
    (tmp_path / "x.txt").write_text("import torch\n")
    (tmp_path / "notes.ipynb").write_text("{}")
    (tmp_path / "empty.yaml").touch()
    (tmp_path / "link.csv").symlink_to("elsewhere.csv")
    (tmp_path / "folder").mkdir()
    CaseLibrary().all()  # the user's own file, made when it is first asked
    torch.save(torch.ones(2, 2), tmp_path / "s.pt")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # formats and places of what is written
        ("report run --output x.txt", "--output x.txt: no format is known by its ending"),
        ("report run --output x.docx", "--output x.docx: no format"),
        ("report run --output report", "end it in .html, .htm, .md or .json"),
        ("report run --output new/o.md", "--output new/o.md: new: no such folder: make it first"),
        ("report run --output folder", "--output folder: is a folder"),
        ("report run --output x.html --format md", "its ending says html, --format md"),
        ("report run --output ''", "argument --output: is empty"),
        ("export run --to csv --output o.parquet", "--output o.parquet: no format is known"),
        ("export run --to csv --output new/o.csv", "new: no such folder"),
        ("export run --to csv --output link.csv", "link.csv: is a symbolic link"),
        ("export run --to tensorboard --output new/tb", "new: no such folder"),
        ("export run --to tensorboard --output x.txt", "x.txt: File exists"),
        ("backtest trace.csv --plot folder", "--plot folder: is a folder"),
        ("backtest trace.csv --plot p.txt", "--plot p.txt: no format is known"),
        ("backtest trace.csv --plot new/p.png", "new: no such folder"),
        ("quantize s.pt --plot new/q.png", "new: no such folder"),
        ("diff train.py:build --input s.pt --plot p.doc", "--plot p.doc: no format is known"),
        # numbers
        ("watch run --interval -1", "argument --interval: -1: give seconds from 0.05 to 3600"),
        ("watch run --interval nan", "argument --interval: nan: give seconds"),
        ("watch run --interval inf", "argument --interval: inf: give seconds"),
        ("watch --demo --interval 0", "argument --interval: 0: give seconds"),
        ("watch run --interval fast", "argument --interval: fast: give seconds"),
        ("export run --to csv --rank -1", "argument --rank: -1: give a whole number from 0"),
        ("export run --to csv --rank 9999999999999", "give a whole number from 0"),
        ("analyze run --step -1", "argument --step: -1: give a whole number"),
        ("analyze run --budget-s nan", "argument --budget-s: nan: give seconds"),
        ("explain run --budget-s -1", "argument --budget-s: -1: give seconds"),
        ("explain run --budget-s inf", "argument --budget-s: inf: give seconds"),
        ("doctor --steps 0 train.py", "argument --steps: 0: give a whole number from 8"),
        ("doctor --steps -1", "argument --steps: -1: give a whole number from 8"),
        ("drill --steps 1e9 train.py", "argument --steps: 1e9: give a whole number"),
        ("verify --steps -3 train.py", "argument --steps: -3: give a whole number"),
        ("backtest trace.csv --set detectors.loss_anomaly.k=x", "k: expected a number, got 'x'"),
        ("backtest trace.csv --set detectors.loss_anomaly.k=-1", "a number at least 0, got -1"),
        ("backtest trace.csv --set detectors.loss_anomaly.k=.nan", "that is finite, got nan"),
        ("backtest trace.csv --set detectors.loss_anomaly.window=2.5", "a whole number, got 2.5"),
        (
            f"backtest trace.csv --set checkpoint.every_steps={10**30}",
            "a whole number from 1 to 9.2",
        ),
        ("backtest trace.csv --set watchdog.hang_timeout_s=0", "a number at least 0.01, got 0"),
        # other things than are asked for
        ("check x.txt", "x.txt: is not a Python file: give a Python file (.py) or a folder"),
        ("check notes.ipynb", "nbconvert --to script notes.ipynb"),
        ("check ''", "argument PATH: is empty"),
        ("quantize folder", "folder: is a folder: give a file made with torch.save"),
        ("diff train.py:build --input folder", "folder: is a folder"),
        ("diff folder:build --input s.pt", "folder: is a folder: give the Python file"),
        ("list ''", "argument DIR: is empty"),
        ("cases nowhere", "nowhere: no such folder"),
        ("cases x.txt", "x.txt: is a file"),
        ("report x.txt", "x.txt: is a file: give the folder that `supervisor run` printed"),
        ("watch run/run.json", "run/run.json: is a file"),
        ("backtest trace.csv --policy empty.yaml", "empty.yaml: is empty"),
        ("run --run-dir '' train.py", "argument --run-dir: is empty"),
        ("run train.py:", "train.py:: no function is named after the colon"),
        ("run ''", "SCRIPT '': is empty"),
        # names
        ("check train.py --select missing-zero-grads", "did you mean missing-zero-grad?"),
        ("check train.py --select foo", "foo: unknown rule: known: "),
        ("check train.py --select ''", "argument --select: '': give at least one name"),
        ("drill --faults , train.py", "argument --faults: ',': give at least one name"),
    ],
)
def test_it_is_said_in_one_line_and_nothing_is_made(
    cli: Cli, files: Path, line: str, expected: str
) -> None:
    before = sorted(files.rglob("*"))

    code, out, err = cli(*shlex.split(line))

    assert (code, out) == (64, "")
    assert err.startswith("supervisor: error: ")
    assert err.count("\n") == 1
    assert expected in err
    assert sorted(files.rglob("*")) == before


def test_what_has_no_near_name_gets_no_guess(cli: Cli, files: Path) -> None:
    _, _, err = cli("check", "train.py", "--ignore", "foo")

    assert "did you mean" not in err


def test_a_report_can_be_written_in_a_format_that_is_named(cli: Cli, files: Path) -> None:
    code, out, _ = cli("report", "run", "--format", "md", "--output", "x.txt")

    assert (code, out) == (0, "x.txt\n")
    assert (files / "x.txt").read_text().startswith("## ")
