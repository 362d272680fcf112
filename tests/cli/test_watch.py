"""`supervisor watch`: what a run is doing, how far it is, and a screen that is used."""

from __future__ import annotations

import io
import struct
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from supervisor.cli.overview.run_phase import find_phase
from supervisor.cli.watch.demo import DemoView
from supervisor.cli.watch.panel import _axis, build_panel, chart
from supervisor.cli.watch.read_run import RunView, _carried_on, own_bar, steps_left
from supervisor.cli.watch.view import WatchView, as_json
from supervisor.events.event import JournalEvent
from supervisor.settings import CheckpointSettings
from supervisor.storage.checkpoints.checkpoints import CheckpointRing
from supervisor.storage.journal.journal import Journal
from supervisor.storage.run.run_state import RunState
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_recorder import FlightRecorder
from tests.cli.conftest import make_run, seen
from tests.journals import event

NOW_S = 1_000_000.0


def aged(kind: str, age_s: float, **fields: Any) -> JournalEvent:
    stamp = datetime.fromtimestamp(NOW_S - age_s, timezone.utc).isoformat()
    return event(kind, time=stamp, attempt=2, **fields)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], "starting"),
        ([aged("attempt_started", 7, checkpoint_step=None)], "starting, for 7 s"),
        ([aged("attempt_started", 7, checkpoint_step=80)], "restarting: goes back to step 80"),
        ([aged("attempt_started", 7, checkpoint_step=80), aged("resumed", 1)], "training"),
        ([aged("restart", 1, next_attempt=3, delay_s=5.0)], "restarting: attempt 3 in 4 s"),
        ([aged("worker_exited", 0)], "stopping: the worker has ended"),
        ([aged("hang_detected", 0)], "stopping a worker that hangs"),
        (
            [aged("signal_received", 10, name="SIGTERM", grace_s=30.0), aged("alert", 0)],
            "stopping (SIGTERM): saves and ends, killed in 20 s at most",
        ),
        ([aged("restart", 1, delay_s="soon")], "restarting: attempt None in 0 s"),
    ],
)
def test_it_says_what_the_run_is_doing(
    tmp_path: Path, events: list[JournalEvent], expected: str
) -> None:
    phase = find_phase(RunDirectory(tmp_path), events, attempt=1, now_s=NOW_S)

    assert phase.startswith(expected)


def test_a_fast_forward_is_shown_with_its_progress(tmp_path: Path) -> None:
    counter = tmp_path / "alive" / "rank_0.replay"
    counter.parent.mkdir()
    counter.write_bytes(struct.pack("<Q", 20))
    begun = aged("attempt_started", 3, checkpoint_step=80)

    phase = find_phase(RunDirectory(tmp_path), [begun], attempt=1, now_s=NOW_S)

    assert phase == "fast-forwarding: 20 of 80 steps (25 %), for 3 s, at most 9 s left"


def test_an_attempt_that_records_steps_is_training(tmp_path: Path) -> None:
    begun = aged("attempt_started", 3, checkpoint_step=None)

    assert find_phase(RunDirectory(tmp_path), [begun], attempt=2, now_s=NOW_S) == "training"


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    started = datetime.fromtimestamp(940.0, timezone.utc).isoformat()
    state = RunState(state="completed", started_at=started, ended_at=started, attempts=1)
    records = tuple(seen(step, 1.0 / (step + 1), memory_gib=0.5) for step in range(60))
    rundir = make_run(tmp_path / "run", state, records)
    ring = CheckpointRing(
        rundir.checkpoints, CheckpointSettings(min_free_gib=0.0), clock=lambda: 1050.0
    )
    ring.save(50, lambda f: f.joinpath("s").write_bytes(b"1") and None, reason="", meta={})
    return rundir


def test_times_rates_memory_and_the_last_checkpoint_are_shown(run: RunDirectory) -> None:
    view = RunView(run, clock=lambda: 1100.0).look()

    assert view.facts == {
        "elapsed": "0 s",
        "speed": "1 steps/s",
        "memory": "0.5 GiB",
        "checkpoint": "step 50, 50 s ago",
    }


def test_events_are_shown_with_their_times(run: RunDirectory) -> None:
    journal = Journal(run.journal, attempt=1, rank=0)
    journal.write(event("alert", step=7, message="the loss rose"))
    journal.close()

    (told,) = RunView(run).look().events

    assert (told.step, told.kind, told.sentence) == (7, "alert", "the loss rose")
    assert time.strptime(told.time, "%H:%M:%S")


def test_how_long_is_left_is_known_where_the_script_says_its_length(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("\r 45%|####    | 450/1000 [00:10<00:12, 43.2it/s]\r 46%|# | 460/1000 [00:10<")

    assert steps_left({"total_steps": 1000.0}, 399) == 600
    assert steps_left({"total_steps": float("nan")}, 399) is None
    assert steps_left({}, 399) is None
    assert own_bar(log) == "450 of 1000, 00:12 left"
    assert own_bar(tmp_path / "gone") == ""


def ranks_of(folder: Path, steps: list[int]) -> RunDirectory:
    """A run of several ranks that have made so many steps each."""
    rundir = make_run(folder, RunState(state="completed", world_size=len(steps)))
    rundir.make(rundir.steps(0).parent)
    for rank, made in enumerate(steps):
        recorder = FlightRecorder(rundir.steps(rank), attempt=1)
        for step in range(made):
            recorder.append(seen(step, 2.0 + rank, step_time_s=0.01), time=1000.0 + step)
        recorder.close()
    return rundir


def test_each_of_several_ranks_has_a_line(tmp_path: Path) -> None:
    view = RunView(ranks_of(tmp_path / "run", [5, 4, 0]), clock=lambda: 1010.0).look()

    assert [(line.rank, line.step, line.loss) for line in view.ranks[:2]] == [(0, 4, 2), (1, 3, 3)]
    assert view.ranks[1].ago_s == 7.0
    assert as_json(view)["ranks"][2] == {
        **{"rank": 2, "step": None, "loss": None},
        **{"step_time_s": None, "memory_gib": None, "ago_s": None},
    }
    shown = shown_lines(view)
    assert any(line.split()[1:7] == ["rank", "1", "step", "3", "loss", "3"] for line in shown)
    assert any("rank 2" in line and "none yet" in line for line in shown)


def test_of_many_ranks_those_that_are_behind_are_shown(tmp_path: Path) -> None:
    shown = shown_lines(RunView(ranks_of(tmp_path / "run", [3, 3, 3, 3, 3, 3, 3, 2, 3])).look())

    assert any("rank 7" in line for line in shown)
    assert any("further ranks, none behind these" in line for line in shown)
    assert len(shown) == 24


def test_one_process_has_no_line_of_a_rank(run: RunDirectory) -> None:
    assert not RunView(run).look().ranks


def shown_lines(view: WatchView) -> list[str]:
    console = Console(width=80, height=24, record=True, file=io.StringIO())
    console.print(build_panel(view, 80, 24))
    return console.export_text().splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50), (60, 15), (40, 10)])
def test_a_frame_fills_the_screen_and_no_more(width: int, height: int) -> None:
    console = Console(width=width, height=height, record=True, file=io.StringIO())
    demo = DemoView()
    for _ in range(60):
        view = demo.look()

    console.print(build_panel(view, width, height))

    lines = console.export_text().rstrip("\n").splitlines()
    assert len(lines) == height
    assert {len(line) for line in lines} == {width}
    assert any("█" in line for line in lines)
    assert "active_units" in "".join(lines) or height < 24
    assert "posterior" in "".join(lines) or height < 24


def test_a_frame_of_a_run_without_a_step_fills_the_screen_too() -> None:
    console = Console(width=80, height=24, record=True, file=io.StringIO())

    console.print(build_panel(WatchView(title="a", state="starting, for 3 s"), 80, 24))

    lines = console.export_text().splitlines()
    assert len(lines) == 24
    assert "no step yet" in lines[1]
    assert "starting, for 3 s" in lines[-1]


def test_a_chart_is_as_high_as_it_is_asked_to_be() -> None:
    assert chart([0.0, 1.0, float("nan")], 3, 2) == [" █×", "▁█×"]


@pytest.mark.parametrize(
    ("steps", "width", "expected"),
    [
        (range(1000), 65, "step       0" + " " * 31 + "500" + " " * 27 + "999"),
        (
            range(999_000, 1_000_000),
            40,
            "step       999,000" + " " * 13 + "999,500" + " " * 6 + "999,999",
        ),
        (range(3), 3, "step       0 2"),
        (range(100_000, 100_003), 3, "step       100,000 … 100,002"),
        (range(7, 8), 1, "step       7"),
        ((), 10, ""),
    ],
)
def test_curves_stand_above_their_steps(steps: Sequence[int], width: int, expected: str) -> None:
    assert "".join(str(line) for line in _axis(steps, width)) == expected


def test_curves_of_one_frame_have_a_column_for_the_same_steps(tmp_path: Path) -> None:
    records = tuple(seen(step, 2.0) for step in range(1500))
    view = RunView(make_run(tmp_path, RunState(state="completed"), records)).look()

    assert (view.steps[0], view.steps[-1]) == (500, 1499)
    assert len(view.steps) == len(view.losses) == len(view.risks)
    assert _carried_on(np.array([np.nan, 0.5, np.nan, 0.25])) == [0.0, 0.5, 0.5, 0.25]
    assert _carried_on(np.array([np.nan])) == []


def test_a_narrow_screen_shows_the_whole_next_command() -> None:
    run = "/home/somebody/experiments/a-long-name-of-a-project/runs/train-20260102-030405"
    lines = ("completed at step 9", "not resumed", "not treated", f"next: supervisor report {run}")

    console = Console(width=80, record=True, file=io.StringIO())
    console.print(build_panel(WatchView(title="a", state="completed", first_lines=lines), 80))

    shown = console.export_text()
    flat = "".join(line.strip("│ ") for line in shown.splitlines())
    assert f"supervisor report{run}" in flat.replace("report ", "report")
    assert all(len(line) <= 80 for line in shown.splitlines())
