"""A run directory that an earlier version has written is resumed."""

from __future__ import annotations

import os
import tarfile
from dataclasses import replace
from pathlib import Path

import torch

from supervisor.storage.run.run_state import load_run_state, save_run_state
from supervisor.storage.run.rundir import RunDirectory
from tests.scenarios.runs import Ended, again, train_plainly

RUN = Path(__file__).parents[1] / "data" / "run_of_0_1.tar.gz"
"""Written by 0.1.0 (commit d2b0d641, torch 2.13.0) of the script that lies in it: stopped after 46
of 60 steps by ``kill`` of the supervisor. Report and logs were taken out."""


def test_a_run_directory_of_0_1_is_continued(tmp_path: Path) -> None:
    folder = tmp_path / "moved"
    with tarfile.open(RUN) as archive:
        archive.extractall(folder, filter="data")
    script = (folder / "train.py").read_text()
    plain = train_plainly(tmp_path / "plain", script)
    rundir = RunDirectory(folder / "runs" / "old")
    save_run_state(rundir, replace(load_run_state(rundir), cwd=str(folder)))
    before = set(os.listdir(rundir.root))

    resumed = again(Ended(folder, 0, "", ""), "resume", str(rundir.root))

    assert resumed.returncode == 0, resumed.stderr
    assert load_run_state(rundir).state == "completed"
    assert before <= set(os.listdir(rundir.root))
    events = [e for e in rundir.journal.read_text().splitlines() if '"resumed"' in e]
    assert len(events) == 1
    assert '"from_step": 46' in events[0]
    # Another processor rounds otherwise than the one on which the first 46 steps were made.
    for name, value in torch.load(plain.folder / "model.pt").items():
        torch.testing.assert_close(
            torch.load(folder / "model.pt")[name], value, rtol=1e-4, atol=1e-5
        )
