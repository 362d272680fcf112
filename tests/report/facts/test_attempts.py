"""Where the seconds of a run went."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from supervisor.records import StepRecord
from supervisor.report.facts.attempts import build_cost
from supervisor.report.facts.run_data import load_material
from supervisor.report.gathering import gather
from supervisor.report.tables import build_tables
from supervisor.storage.run.run_state import new_run_state, save_run_state
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_recorder import FlightRecorder
from tests.report import synthetic_run
from tests.report.synthetic_run import ALL_ENDS, SyntheticRun


@pytest.mark.parametrize("name", sorted(ALL_ENDS))
def test_the_parts_add_up_to_the_whole(tmp_path: Path, name: str) -> None:
    cost = build_cost(load_material(ALL_ENDS[name](tmp_path / "run")))

    parts = (cost.useful_s, cost.replayed_s, cost.stalled_s, cost.down_s, cost.other_s)
    assert min(parts) >= 0.0
    assert sum(parts) == pytest.approx(cost.wall_s, abs=1e-6)


def test_a_restart_costs_the_steps_done_again_and_the_time_without_a_worker(tmp_path: Path) -> None:
    cost = build_cost(load_material(synthetic_run.treated(tmp_path / "run")))

    assert (cost.useful_steps, cost.replayed_steps, cost.skipped_updates) == (300, 30, 1)
    assert cost.useful_s == pytest.approx(30.0, abs=0.05)
    assert cost.replayed_s == pytest.approx(3.0, abs=0.05)
    assert cost.stalled_s == pytest.approx(0.01)
    # From step 200 to step 171 of attempt 2: 0.05 s, 1 s of backoff, 3 s of start, the step itself.
    assert cost.down_s == pytest.approx(4.15, abs=0.01)


def test_a_hang_is_time_that_stood_still(tmp_path: Path) -> None:
    cost = build_cost(load_material(synthetic_run.hung(tmp_path / "run")))

    assert cost.stalled_s == pytest.approx(65.0)


def test_a_rollback_in_place_makes_its_steps_useless_and_counts_its_stall_once(
    tmp_path: Path,
) -> None:
    run = SyntheticRun(tmp_path / "run")
    run.start(1)
    run.steps(0, 80)
    run.action("rollback", 80, cost_s=0.5)
    run.event("rollback", step=80, from_step=80, to_step=60, cost_s=0.5)
    run.steps(81, 100)
    run.exit("completed", 100, returncode=0)

    cost = build_cost(load_material(run.finish("completed")))

    assert (cost.useful_steps, cost.replayed_steps) == (81, 20)
    assert cost.stalled_s == pytest.approx(0.5)


def test_a_rollback_that_was_taken_back_costs_the_steps_since(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path / "run")
    run.start(1)
    run.steps(0, 80)
    run.event("rollback", step=80, from_step=80, to_step=60, before_step=81)
    run.steps(81, 100)
    run.action("reinstate", 82, applied=True, fields={"from_step": 82, "kept_step": 81})
    run.exit("completed", 100, returncode=0)

    cost = build_cost(load_material(run.finish("completed")))

    assert (cost.useful_steps, cost.replayed_steps) == (99, 2)


def _run(folder: Path, world_size: int) -> RunDirectory:
    rundir = RunDirectory(folder)
    rundir.make(rundir.root)
    state = new_run_state(command=("supervisor", "run", "t.py"), kind="script", script="t.py")
    save_run_state(rundir, type(state)(**{**_fields(state), "world_size": world_size}))
    for rank in range(world_size):
        recorder = FlightRecorder(rundir.steps(rank), attempt=1)
        for step in range(5 + rank):
            loss = 1.0 + rank + step
            record = StepRecord(step=step, loss=loss, loss_seen=True, memory_gib=0.5 * rank)
            recorder.append(record, time=1e9 + step)
        recorder.close()
    lines = [
        {"kind": "hang_detected", "rank": 1, "step": 4, "frames": [], "evidence": ["no step"]},
        {"kind": "worker_exited", "rank": 1, "step": 4, "cause": "hang", "evidence": ["no step"]},
    ]
    head = {"time": "2026-11-24T00:00:00+00:00", "attempt": 1}
    rundir.journal.write_text("".join(json.dumps({**head, **line}) + "\n" for line in lines))
    return rundir


def _fields(state: object) -> dict[str, object]:
    return {name: getattr(state, name) for name in state.__dataclass_fields__}  # type: ignore[attr-defined]


def test_each_rank_has_a_row(tmp_path: Path) -> None:
    report = gather(_run(tmp_path / "run", 2).root)

    assert [(one.rank, one.last_step, one.last_loss) for one in report.ranks] == [
        (0, 4, 5.0),
        (1, 5, 7.0),
    ]
    assert [(one.failures, one.hangs) for one in report.ranks] == [(0, 0), (1, 1)]
    assert [row[-3:-1] for row in build_tables(report, None)["ranks"].rows] == [
        ("0", "0"),
        ("1", "1"),
    ]


def test_a_training_of_one_process_has_none(tmp_path: Path) -> None:
    assert gather(_run(tmp_path / "run", 1).root).ranks == ()
