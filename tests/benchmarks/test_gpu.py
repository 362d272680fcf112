"""`make gpu`: every part of it can be imported and comes as far as its first call of a device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import points, runs
from benchmarks.gpu.points import POINTS, Place

EACH_KIND = """
import re, torch
from benchmarks.gpu import timed, trainings, waits
trainings.options.steps = 2
for kind, train in trainings.KINDS.items():
    trainings.options.device = "cpu"
    if kind not in trainings.NEEDS_CUDA:
        train()
        assert trainings.result["losses"], kind
    trainings.options.device = "cuda"
    if not torch.cuda.is_available():
        try:
            train()
        except (AssertionError, RuntimeError) as error:
            assert re.search("cuda|nvidia", str(error), re.IGNORECASE), (kind, error)
        else:
            raise AssertionError(kind)
for kind in () if torch.cuda.is_available() else waits.KINDS:
    try:
        waits.Training(kind)
    except (AssertionError, RuntimeError) as error:
        assert re.search("cuda|nvidia", str(error), re.IGNORECASE), (kind, error)
"""


def test_every_training_comes_as_far_as_its_first_call_of_a_device() -> None:
    done = subprocess.run([sys.executable, "-c", EACH_KIND], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", POINTS)
def test_without_a_device_a_point_says_so(name: str) -> None:
    [row] = command.rows_of(name, None)

    assert row.found == "not run: no device"
    assert row.good is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a device")
@pytest.mark.parametrize(
    "part",
    [
        points._generators,
        lambda: points._aside(1 << 10, 0.1),
        lambda: points._one_copy(1 << 10),
        lambda: points._kinds_of_memory(1 << 10),
    ],
)
def test_what_runs_in_this_process_comes_as_far_as_its_first_call_of_a_device(part: Any) -> None:
    with pytest.raises((AssertionError, RuntimeError), match=r"(?i)cuda|nvidia"):
        part()


def test_a_collective_that_was_revoked_is_made_again() -> None:
    *_, row = points.ranks(Place(Path(), "cpu"))

    assert row.good, row.found
    assert row.figures["again_s"] >= row.figures["revoked_s"]


def test_two_ranks_need_two_devices() -> None:
    row = points._revoked(Place(Path(), "cuda"), "made anew", 1)

    assert (row.found, row.good) == ("not run: 1 device", None)


def test_the_last_line_of_the_tests_counts_what_is_not_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu", "--dry"])

    assert command.main() == 0
    assert capsys.readouterr().out == f"{len(POINTS)} GPU points not run: no device\n"


RESULTS: dict[str, Any] = {
    "waits.py": {"profiled": {}, "typical": 0, "mean": 0.0, "largest": 1, "sites": {}},
    "timed.py": {
        "turns": [0.01, 0.011],
        "tried": {"16": 0.01, "64": 0.02},
        "steps": [0.1, 0.1, 0.5],
        "state_bytes": 1 << 20,
        "peak_bytes": 1 << 21,
        "reserved_bytes": 1 << 21,
    },
}


def ended(folder: Path, words: Any, *, supervised: bool, script: Path = runs.TRAININGS, **_: Any):
    """What a run would leave in which a NaN was left out, or that failed once and was resumed."""
    run_dir = folder / "run"
    run_dir.mkdir(parents=True)
    out = folder / ("out.json" if script.name in RESULTS else "out.pt")
    if script.name in RESULTS:
        out.write_text(json.dumps(RESULTS[script.name]))
    else:
        torch.save({"weights": torch.ones(2), "loss": [1.0, float("nan")]}, out)
    told = [
        {"kind": "update_skipped", "step": points.FAULT_AT},
        {"kind": "resumed", "exactness": "exact", "from_step": 60, "reason": ""},
        {"kind": "worker_exited", "cause": "oom", "last_step": 9, "evidence": ["no room"]},
        {"kind": "checkpoint_saved", "bytes": 10, "seconds": 0.1},
    ]
    (run_dir / "events.jsonl").write_text("\n".join(json.dumps(event) for event in told))
    return runs.Ended(code=0, seconds=1.0, said="", out=out, run_dir=run_dir)


class Player:
    def __init__(self, *_: Any) -> None:
        pass

    def play(self) -> None:
        pass

    def result(self) -> Any:
        return RESULTS["timed.py"]


@pytest.mark.parametrize("name", POINTS)
def test_what_runs_leave_becomes_rows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(points, "run", ended)
    monkeypatch.setattr(points, "_Player", Player)
    for needs_one in ("_one_copy", "_kinds_of_memory", "_aside", "_generators"):
        given = 0.1 if needs_one == "_one_copy" else points.Row(what="", found="", good=None)
        monkeypatch.setattr(points, needs_one, lambda *_, given=given: given)

    rows = list(command.rows_of(name, Place(tmp_path)))

    assert rows
    assert all(row.good is not False for row in rows), rows


def test_a_run_that_ends_otherwise_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(folder: Path, words: Any, *, supervised: bool, **given: Any) -> runs.Ended:
        found = ended(folder, words, supervised=supervised, **given)
        torch.save({"weights": torch.full((2,), 1.0 + supervised)}, found.out)
        return found

    monkeypatch.setattr(points, "run", other)
    bad = points.Row(what="", found="DIFFERS: .weights", good=False)
    monkeypatch.setattr(points, "_generators", lambda: bad)
    for name in ("captures", "healthy", "half_precision", "kills", "faults"):
        for row in command.rows_of(name, Place(tmp_path)):
            assert row.good is False
            assert "DIFFERS: .weights" in row.found


def test_a_run_that_fails_is_told_with_its_last_error(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text("raise SystemExit('Error: no such thing')")

    failed = runs.run(tmp_path / "run", [], supervised=False, script=script)

    assert failed.code == 1
    assert points._failure(failed) == "FAILED plain with 1: Error: no such thing"
