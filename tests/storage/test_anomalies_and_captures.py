from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest

from supervisor.settings import CaptureSettings
from supervisor.storage.evidence import AnomalyLog, CaptureStore
from supervisor.storage.files.json_files import read_lines
from supervisor.storage.run.rundir import RunDirectory

MIB = 1024**2


def store_at(folder: Path, budget_mib: float = 3.5, enabled: bool = True) -> CaptureStore:
    clock = itertools.count(1_700_000_000)
    rules = CaptureSettings(enabled=enabled, budget_mib=budget_mib)
    return CaptureStore(RunDirectory(folder), rules, clock=lambda: float(next(clock)))


def batch(folder: Path) -> None:
    (folder / "input.pt").write_bytes(bytes(MIB))


def steps_of(store: CaptureStore) -> list[int]:
    return [capture.step for capture in store.captures()]


def test_an_anomaly_has_exactly_the_fields_of_its_format(tmp_path: Path) -> None:
    rundir = RunDirectory(tmp_path)
    log = AnomalyLog(rundir, 1, clock=lambda: 0.0)

    log.write(
        step=5,
        loss=math.nan,
        grad_norm=2.0,
        batch_info={"x": {"shape": [2, 3], "path": "x.pt"}},
        model_checkpoint=Path("checkpoints/step_00000004"),
        threshold_info={"loss": {"median": 1.0, "mad": 0.1}},
    )
    log.close()

    assert read_lines(rundir.anomalies(1)) == [
        {
            "step": 5,
            "rank": 1,
            "timestamp": "1970-01-01T00:00:00+00:00",
            "loss": "nan",
            "grad_norm": 2.0,
            "batch_info": {"x": {"shape": [2, 3], "path": "x.pt"}},
            "model_checkpoint": "checkpoints/step_00000004",
            "threshold_info": {"loss": {"median": 1.0, "mad": 0.1}},
            "data_dir": None,
        }
    ]
    assert read_lines(rundir.anomalies(0)) == []


def test_a_capture_is_a_folder_named_by_step_rank_and_time(tmp_path: Path) -> None:
    store = store_at(tmp_path)

    path = store.save(12, 3, batch, badness=2.0)

    assert path == tmp_path / "anomalies" / "data" / "step_12_rank_3_20231114T221320_000000"
    assert (path / "input.pt").stat().st_size == MIB
    assert json.loads((path / "capture.json").read_text())["badness"] == 2.0
    assert path.stat().st_mode & 0o777 == 0o700


def test_the_newest_and_the_worst_are_kept_within_the_budget(tmp_path: Path) -> None:
    store = store_at(tmp_path)

    for step, badness in enumerate([5.0, math.nan, 1.0, 3.0, 4.0, 2.0]):
        assert store.save(step, 0, batch, badness=badness) is not None

    assert steps_of(store) == [0, 1, 5]
    assert sum(capture.bytes for capture in store.captures()) <= 3.5 * MIB


def test_the_worst_stays_when_there_is_room_for_one(tmp_path: Path) -> None:
    store = store_at(tmp_path, budget_mib=1.5)

    kept = [store.save(step, 0, batch, badness=b) for step, b in enumerate([5.0, 3.0, 7.0])]

    assert [path is not None for path in kept] == [True, False, True]
    assert steps_of(store) == [2]


def test_a_capture_over_the_whole_budget_costs_no_other_one(tmp_path: Path) -> None:
    store = store_at(tmp_path, budget_mib=1.5)
    store.save(0, 0, batch, badness=1.0)

    path = store.save(1, 0, lambda f: (f / "x").write_bytes(bytes(2 * MIB)) and None, badness=9.0)

    assert path is None
    assert steps_of(store) == [0]
    assert "exceed capture.budget_mib" in store.problem


def test_captures_that_are_off_write_nothing(tmp_path: Path) -> None:
    store = store_at(tmp_path, enabled=False)

    assert store.save(0, 0, pytest.fail, badness=1.0) is None
    assert list(tmp_path.iterdir()) == []


def test_a_capture_that_fails_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        (folder / "half").write_bytes(b"x")
        raise RuntimeError("cannot copy")

    store = store_at(tmp_path)

    assert store.save(4, 0, write, badness=1.0) is None
    assert "cannot copy" in store.problem
    assert list((tmp_path / "anomalies" / "data").iterdir()) == []
