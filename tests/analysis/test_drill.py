from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.analysis.drill import MENU, choose, drill
from supervisor.analysis.outcome import ReferenceRun, judge
from supervisor.analysis.trial_run import TrialRun, TrialScript
from supervisor.cli.main import main
from supervisor.errors import SupervisorError, UsageError
from supervisor.fault_injection.fault import KINDS, Fault
from supervisor.fault_injection.injector import damage_newest_checkpoint
from supervisor.records import StepRecord
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_recorder import UPDATE_SKIPPED, FlightRecorder
from tests.analysis.trial_scripts import SEEDED

FALLING = tuple(2.0 - 0.01 * step for step in range(100))

SEVERAL_RUNS_S = 600
"""On a machine that is busy with other things every process start takes long."""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def reference_of(losses: tuple[float, ...] = FALLING) -> ReferenceRun:
    return ReferenceRun(losses=losses, seconds=4.0, slowest_step_s=0.1)


def run_of(
    folder: Path, losses: tuple[float, ...], *, events: tuple[dict[str, object], ...] = ()
) -> TrialRun:
    """A run directory with these losses; each event gets what all have."""
    rundir = RunDirectory(folder / "run")
    rundir.make(rundir.steps(0).parent)
    recorder = FlightRecorder(rundir.steps(0), 1)
    for step, loss in enumerate(losses):
        record = StepRecord(step=step, loss=loss, loss_seen=True, step_time_s=0.1)
        recorder.append(record, time=float(step))
    recorder.close()
    lines = [json.dumps({"time": "", "attempt": 1, "rank": 0, "step": 0, **e}) for e in events]
    rundir.journal.write_text("".join(line + "\n" for line in lines))
    return TrialRun(rundir=rundir, returncode=0, seconds=5.0, output="")


def test_every_fault_of_the_menu_is_one_that_can_be_injected() -> None:
    kinds = {fault.kind or fault.name for fault in MENU.values()}

    assert kinds <= set(KINDS)
    assert {"sigkill", "sigterm", "nan_data", "hang", "disk_full", "damaged_checkpoint"} <= set(
        MENU
    )


def test_an_unknown_fault_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean sigkill"):
        choose(["sigkil"])


def test_no_names_mean_the_whole_menu() -> None:
    assert [fault.name for fault in choose([])] == list(MENU)


def test_a_rank_is_killed_only_where_there_are_several() -> None:
    with pytest.raises(UsageError, match="--nproc-per-node"):
        drill(TrialScript(words=("train.py",)), faults=["kill_rank"])


def test_a_rank_that_came_back_alone_is_counted(tmp_path: Path) -> None:
    back = {"kind": "healed", "from_step": 40, "waited_s": 3.4, "answered": 9}

    found = judge("kill_rank", run_of(tmp_path, FALLING, events=(back,)), reference_of(), 5.0)

    assert found.detail == "rank back alone ×1"


def test_a_late_batch_comes_within_the_watchdogs_time() -> None:
    settings = MENU["slow_loader"].settings_at(60, hang_timeout_s=8.0)

    assert "step: 60, factor: 4.0" in settings["faults"]
    assert settings["watchdog.hang_timeout_s"] == "8.000"


def test_a_fault_strikes_the_rank_that_it_is_told() -> None:
    assert "rank: 2}" in MENU["nan_loss"].settings_at(60, 8.0, rank=2)["faults"]


def test_the_same_final_loss_is_survived(tmp_path: Path) -> None:
    found = judge("sigkill", run_of(tmp_path, FALLING), reference_of(), seconds=5.0)

    assert found.survived
    assert (found.steps_lost, found.seconds_lost) == (0, 1.0)
    assert found.final_loss == pytest.approx(found.reference_loss)


@pytest.mark.parametrize("last", [5.0, math.nan])
def test_a_final_loss_that_is_worse_is_not_survived(last: float, tmp_path: Path) -> None:
    losses = (*FALLING[:90], *(last,) * 10)

    assert not judge("weight", run_of(tmp_path, losses), reference_of(), seconds=4.0).survived


def test_a_better_final_loss_is_survived(tmp_path: Path) -> None:
    losses = (*FALLING[:90], *(0.1,) * 10)

    assert judge("weight", run_of(tmp_path, losses), reference_of(), seconds=4.0).survived


def test_a_run_that_ends_early_is_not_survived(tmp_path: Path) -> None:
    found = judge("exception", run_of(tmp_path, FALLING[:50]), reference_of(), seconds=4.0)

    assert not found.survived
    assert "after 50 steps" in found.detail


def test_steps_that_were_undone_are_lost_and_counted_in_the_comparison(tmp_path: Path) -> None:
    behind = (*FALLING[:60], *(FALLING[step - 30] for step in range(60, 100)))
    undone = {"kind": "rollback", "from_step": 60, "to_step": 30}

    with_rollback = run_of(tmp_path / "a", behind, events=(undone,))
    without = run_of(tmp_path / "b", behind)

    assert judge("weight", with_rollback, reference_of(), seconds=4.0).steps_lost == 31
    assert judge("weight", with_rollback, reference_of(), seconds=4.0).survived
    assert not judge("weight", without, reference_of(), seconds=4.0).survived


def test_a_rollback_that_was_taken_back_loses_the_steps_since(tmp_path: Path) -> None:
    undone = {"kind": "rollback", "from_step": 60, "to_step": 30}
    back = {"kind": "action", "name": "reinstate", "step": 62, "outcome": "applied"}

    run = run_of(tmp_path, FALLING, events=(undone, {**back, "fields": {"kept_step": 61}}))

    assert judge("loss_spike", run, reference_of(), seconds=4.0).steps_lost == 2


def test_undoing_the_same_steps_again_does_not_lose_them_again(tmp_path: Path) -> None:
    undone = tuple({"kind": "rollback", "from_step": step, "to_step": 30} for step in (60, 70, 80))

    run = run_of(tmp_path, FALLING, events=undone)

    assert judge("nan_data", run, reference_of(), seconds=4.0).steps_lost == 81 - 30


def test_updates_that_were_left_out_are_lost(tmp_path: Path) -> None:
    run = run_of(tmp_path, FALLING)
    recorder = FlightRecorder(run.rundir.steps(0), 2)
    row = recorder.append(StepRecord(step=100, loss=1.0, loss_seen=True), time=0.0)
    recorder.mark(row, flags=UPDATE_SKIPPED)
    recorder.mark_risk((row,), 0.0)
    recorder.close()

    assert judge("nan_loss", run, reference_of(), seconds=4.0).steps_lost == 1


def test_without_any_loss_reaching_the_end_is_enough(tmp_path: Path) -> None:
    unseen = (math.nan,) * 100

    assert judge("hang", run_of(tmp_path, unseen), reference_of(unseen), seconds=4.0).survived


def test_what_was_done_is_told(tmp_path: Path) -> None:
    action = {"kind": "action", "name": "skip_update", "outcome": "applied"}
    started = {"kind": "attempt_started"}
    run = run_of(tmp_path, FALLING, events=(started, action, started))

    found = judge("nan_loss", run, reference_of(), seconds=4.0)

    assert found.detail == "skip update ×1, new process ×1"


def test_a_flipped_bit_is_in_the_newest_checkpoint(tmp_path: Path) -> None:
    for step in (4, 8):
        folder = tmp_path / f"step_{step:08d}"
        folder.mkdir()
        (folder / "state.pt").write_bytes(bytes(100))
        (folder / "manifest.json").write_bytes(bytes(200))

    damage_newest_checkpoint(tmp_path)

    assert (tmp_path / "step_00000004" / "state.pt").read_bytes() == bytes(100)
    assert sum((tmp_path / "step_00000008" / "state.pt").read_bytes()) == 1
    assert (tmp_path / "step_00000008" / "manifest.json").read_bytes() == bytes(200)


def test_a_full_disk_refuses_writes_until_its_steps_are_over(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from supervisor.fault_injection.injector import FullDisk\n"
        "disk = FullDisk(); disk.start(2)\n"
        "try:\n    open(sys.argv[1], 'w', buffering=1).write('no\\n'); print('written')\n"
        "except OSError: print('refused')\n"
        "disk.step_done(); disk.step_done()\n"
        "open(sys.argv[1], 'w').write('yes'); print('written')\n"
    )

    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "file")],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.stdout.split() == ["refused", "written"], done.stderr


@pytest.mark.parametrize("kind", ["disk_full", "damaged_checkpoint", "slow"])
def test_the_faults_of_a_drill_are_known_to_the_config(kind: str) -> None:
    assert Fault.from_config({"kind": kind, "step": 3}).kind == kind


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(UsageError, match="--steps 10: at least"):
        drill(TrialScript(words=("train.py",)), steps=10)


def test_a_script_that_fails_by_itself_is_said_so() -> None:
    Path("train.py").write_text("raise SystemExit('no data')")

    with pytest.raises(SupervisorError, match="no data"):
        drill(TrialScript(words=("train.py",)), faults=["sigkill"])


def test_a_missing_script_ends_with_64(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drill", "nowhere.py"]) == 64
    assert "nowhere.py: no such file" in capsys.readouterr().err


@pytest.mark.timeout(SEVERAL_RUNS_S)
def test_faults_in_a_training_are_survived(capfd: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text(SEEDED)

    code = main(
        ["drill", "--faults", "damaged_checkpoint,nan_loss", "--steps", "40", "--json", "train.py"]
    )

    document = json.loads(capfd.readouterr().out)
    killed, skipped = document["faults"]
    assert document["all_survived"], document
    assert code == 0
    assert killed["name"] == "damaged_checkpoint"
    assert killed["final_loss"] == killed["reference_loss"]
    assert killed["steps_lost"] > 0
    assert "checkpoint rejected" in killed["detail"]
    assert (skipped["name"], skipped["steps_lost"]) == ("nan_loss", 1)
    assert [path.name for path in Path.cwd().iterdir()] == ["train.py"]


def test_an_update_of_a_second_optimizer_that_was_left_out_is_told(tmp_path: Path) -> None:
    run = run_of(tmp_path, FALLING, events=({"kind": "update_skipped", "reason": "poisoned"},))

    assert judge("nan_gradient", run, reference_of(), seconds=4.0).detail == "update left out ×1"
