"""What a report says of each of several ranks."""

from __future__ import annotations

import json
from pathlib import Path

from supervisor.records import StepRecord
from supervisor.report.gathering import gather
from supervisor.report.words.tables import build_tables
from supervisor.storage.run.run_state import new_run_state, save_run_state
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_recorder import FlightRecorder


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
