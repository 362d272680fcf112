"""Writing a report into a run directory."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.records import StepRecord
from supervisor.report import write
from supervisor.report.curves.plots import EVERY
from supervisor.report.write import write_report
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_recorder import FlightRecorder
from tests.report import synthetic_run


def test_text_and_pictures_are_written_private(tmp_path: Path) -> None:
    root = synthetic_run.treated(tmp_path / "run")

    written = write_report(root)

    assert {kind: path.name for kind, path in written.items()} == {
        "json": "report.json",
        "md": "report.md",
        "html": "report.html",
        "overview": "overview.png",
    }
    assert {stat.S_IMODE(path.stat().st_mode) for path in written.values()} == {0o600}
    assert written["overview"].read_bytes().startswith(b"\x89PNG")


def test_every_picture_is_written_where_it_is_asked_for(tmp_path: Path) -> None:
    root = synthetic_run.treated(tmp_path / "run")
    (root / "report").mkdir(exist_ok=True)
    layer = {"name": "0", "norm": 1.0, "max": 0.5, "mean": 0.1}
    (root / "report" / "gradient_flow.json").write_text(json.dumps([layer]))

    written = write_report(root, EVERY)
    page = written["html"].read_text()
    write_report(root)

    assert {"overview", "gradient_flow"} <= set(written)
    assert page.count("data:image/png;base64,") == 2
    assert not written["gradient_flow"].exists(), "an older picture beside a new report"


def test_no_picture_is_drawn_where_the_config_says_so(tmp_path: Path) -> None:
    root = synthetic_run.treated(tmp_path / "run")
    (root / "config.yaml").write_text("report: {plots: false}")

    assert set(write_report(root)) == {"json", "md", "html"}


def test_a_page_stays_small_whatever_the_run_holds(tmp_path: Path) -> None:
    run = synthetic_run.SyntheticRun(tmp_path / "run")
    recorder = FlightRecorder(run.rundir.steps(0), 1)
    for step in range(3000):
        observed = {f"value_{name}": 1e-5 * (step + name) ** 1.5 for name in range(256)}
        record = StepRecord(step=step, loss=1.0 / (step + 3), loss_seen=True, observed=observed)
        recorder.append(record, time=float(step))
    recorder.close()
    for rank in range(64):
        stacks = run.rundir.root / "logs" / "attempt_1" / f"stacks_{rank}.txt"
        run.rundir.make(stacks.parent)
        stacks.write_text("".join(f'  File "{"a" * 60}.py", line {n} in f\n' for n in range(400)))
    run.rundir.log(1, 0).write_text("".join(f"step {n} {'ACGT' * 1500}\n" for n in range(40)))

    page = write_report(run.rundir)["html"]

    assert page.stat().st_size < 2_000_000
    assert "and 5007 more letters" in page.read_text()


def test_writing_again_gives_the_same(tmp_path: Path) -> None:
    rundir = RunDirectory(synthetic_run.interrupted(tmp_path / "run"))
    first = {kind: path.read_bytes() for kind, path in write_report(rundir).items()}

    second = {kind: path.read_bytes() for kind, path in write_report(rundir).items()}

    assert second == first


def test_a_broken_picture_prevents_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no fonts")

    monkeypatch.setattr(write, "draw_pictures", broken)
    root = synthetic_run.treated(tmp_path / "run")

    written = write_report(root)

    assert set(written) == {"json", "md", "html"}
    assert "RuntimeError: no fonts" in written["html"].read_text()


def test_an_empty_run_has_a_report_without_pictures(tmp_path: Path) -> None:
    written = write_report(synthetic_run.empty(tmp_path / "run"))

    assert set(written) == {"json", "md", "html"}


def test_the_module_writes_a_report_without_importing_torch(tmp_path: Path) -> None:
    root = synthetic_run.interrupted(tmp_path / "run")
    code = (
        "import sys; from supervisor.report.__main__ import main;"
        f"status = main([{str(root)!r}]); assert 'torch' not in sys.modules; sys.exit(status)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert str(root / "report" / "report.html") in done.stdout.splitlines()


def test_what_is_no_directory_is_a_usage_error() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "supervisor.report", "/nowhere/at/all"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 64
    assert done.stderr.startswith("supervisor: error: /nowhere/at/all: no run directory: give")
