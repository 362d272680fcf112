"""Pictures of a run that goes on."""

from __future__ import annotations

from pathlib import Path

from supervisor.parent.watching.live_pictures import LivePictures
from supervisor.records import StepRecord
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_recorder import FlightRecorder

PNG = b"\x89PNG"


def test_a_picture_is_drawn_when_its_step_has_come_and_not_again_at_once(tmp_path: Path) -> None:
    rundir = RunDirectory(tmp_path)
    recorder = FlightRecorder(rundir.steps(0), 1)
    for step in range(60):
        seen = {"kl": 4.0 - step / 20}
        record = StepRecord(step=step, loss=2.0, loss_seen=True, observed=seen)
        recorder.append(record, time=1e9 + step)
    recorder.close()
    pictures = LivePictures(rundir, 50)

    pictures.look(49)
    assert pictures._process is None
    pictures.look(59)
    assert pictures._process is not None
    assert pictures._process.wait() == 0
    pictures.look(100)

    assert pictures._process is None
    for name in ("overview", "observed"):
        assert (rundir.report / f"{name}.png").read_bytes().startswith(PNG)
    assert not (rundir.report / "report.json").exists()


def test_without_the_setting_nothing_is_drawn(tmp_path: Path) -> None:
    pictures = LivePictures(RunDirectory(tmp_path), None)

    pictures.look(10**6)

    assert pictures._process is None
    pictures.end()
