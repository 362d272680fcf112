"""Memory that is not there is not taken: control groups with a limit, and runs without room."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.memory_limit import SCRIPT, memory_group, run_within, supervised_line
from supervisor.settings import CheckpointSettings
from supervisor.storage.checkpoints.checkpoints import CheckpointRing
from supervisor.training_state.state import digest, read_state
from tests.scenarios.runs import Ended, differences, supervised, train_plainly

TRAINS = SCRIPT.replace("sys.argv[2]", "'1'").replace("sys.argv[3]", "'60'")
EVERY_TEN = ("checkpoint.every_steps=10",)
NO_ROOM = (*EVERY_TEN, "snapshot.max_share=0.000001")


@pytest.fixture
def groups() -> None:
    try:
        with memory_group(1 << 30):
            pass
    except (OSError, KeyError) as error:
        pytest.skip(f"no control group with a memory limit can be made here: {error}")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return train_plainly(tmp_path_factory.mktemp("plain"), TRAINS)


def test_without_room_a_state_is_written_while_the_training_waits_and_a_resume_is_exact(
    tmp_path: Path, plain: Ended
) -> None:
    run = supervised(tmp_path, TRAINS, settings=NO_ROOM, faults="[{kind: sigkill, step: 35}]")

    assert run.returncode == 0
    assert differences(plain.result(), run.result()) == []
    assert [event["exactness"] for event in run.events("resumed")] == ["exact"]
    assert run.found("copies held") == []
    assert "no copy of the state" in run.stdout + run.stderr
    told = [event for event in run.found("memory") if event["attempt"] == 1]
    assert len(told) == 1
    ring = CheckpointRing(run.run_dir / "checkpoints", CheckpointSettings())
    for saved in ring.checkpoints():
        ring.verify(saved)
        assert digest(read_state(saved.path)) == saved.meta["digest"]
    assert not list((run.run_dir / "checkpoints").glob(".staged*"))


def test_without_room_a_rollback_takes_the_weights_of_a_checkpoint(tmp_path: Path) -> None:
    run = supervised(
        tmp_path,
        TRAINS,
        settings=NO_ROOM,
        faults="[{kind: nan_loss, step: 45, every: true, count: 3}]",
    )

    assert run.returncode == 0
    going_back = run.events("rollback")
    assert [event["to_step"] % 10 for event in going_back] == [0]
    assert 0 < going_back[0]["to_step"] < 45


def test_what_will_be_held_is_said_once_it_is_known(tmp_path: Path) -> None:
    run = supervised(tmp_path, TRAINS, settings=(*EVERY_TEN, "snapshot.every_steps=10"))

    assert run.returncode == 0
    assert "supervisor: memory: 4 copies of 1.0 MB, 6.1 MB on disk" in run.stdout + run.stderr
    assert max(event["count"] for event in run.found("copies held")) == 4


@pytest.mark.usefixtures("groups")
def test_a_training_of_50_mb_survives_where_one_copy_more_would_be_too_much(
    tmp_path: Path,
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    free = run_within(None, tmp_path, [sys.executable, "script.py", "plain.pt", "50", "20"])
    # What python, torch's tracing and the parent take beside the training, and a part of a copy.
    limit = int(free.peak_mb * 1e6) + 100_000_000
    fault = "faults=[{kind: sigkill, step: 15}]"

    trial = run_within(
        limit,
        tmp_path,
        supervised_line(50, 20, "within", "checkpoint.every_steps=5", fault),
    )

    assert trial.code == 0, trial.output
    assert trial.kills == 0, trial.output
    run = Ended(tmp_path, 0, trial.output, "")
    (tmp_path / "run_within").rename(tmp_path / "run")
    assert [event["exactness"] for event in run.events("resumed")] == ["exact"]
    assert differences(run.result("plain.pt"), run.result("within.pt")) == []


@pytest.mark.exhaustive
@pytest.mark.usefixtures("groups")
def test_a_training_of_300_mb_survives_a_limit_a_fifth_above_its_plain_peak(
    tmp_path: Path,
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    free = run_within(None, tmp_path, [sys.executable, "script.py", "plain.pt", "300", "40"])
    fault = "faults=[{kind: sigkill, step: 25}]"

    trial = run_within(
        int(1.2 * free.peak_mb * 1e6),
        tmp_path,
        supervised_line(300, 40, "within", "checkpoint.every_steps=10", fault),
    )

    assert trial.code == 0, trial.output
    assert trial.kills == 0, trial.output
    run = Ended(tmp_path, 0, trial.output, "")
    (tmp_path / "run_within").rename(tmp_path / "run")
    assert [event["exactness"] for event in run.events("resumed")] == ["exact"]
    assert differences(run.result("plain.pt"), run.result("within.pt")) == []
