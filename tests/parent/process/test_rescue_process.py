"""The process that writes what dead ranks kept: whatever becomes of it, the parent goes on."""

from __future__ import annotations

from pathlib import Path

from supervisor.parent.process.rescue_process import RescueProcess
from supervisor.storage.run.rundir import RunDirectory


def test_what_fails_in_it_is_told_in_words(tmp_path: Path) -> None:
    unneeded = RescueProcess(RunDirectory(tmp_path), {"0": [str(tmp_path / "nowhere")]})
    process = RescueProcess(RunDirectory(tmp_path), {"0": [str(tmp_path / "nowhere")]})

    unneeded.end()
    said = process.save(3)

    assert "No such file or directory" in str(said)
