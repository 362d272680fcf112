"""What a run has lost is said when it happens, at its end, and in the report's first line; the
training and its exit code stay what they are."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.scenarios.runs import Ended, differences, supervised, train_plainly

SCRIPT = """
import random, shutil, sys
import torch

torch.manual_seed(0)
random.seed(0)
net = torch.nn.Linear(8, 1)
opt = torch.optim.Adam(net.parameters(), 1e-2)
for step in range(1, 61):
    x = torch.randn(32, 8)
    loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("step", step, "".join(random.choices("ACGT", k=6000)), flush=True)
    if step == 30 and len(sys.argv) > 2:
        shutil.rmtree(sys.argv[2], ignore_errors=True)
torch.save(net.state_dict(), sys.argv[1])
"""
NOT_ALL_IS_WELL = re.compile(r"supervisor: completed at step \d+\b[^\n]*, but not all is well: \w")
REPORT = ("report.enabled=true", "checkpoint.every_steps=20", "checkpoint.background=false")


def told(ended: Ended, folder: str = "run") -> tuple[dict[str, object], str]:
    report = ended.folder / folder / "report"
    return json.loads((report / "report.json").read_text()), (report / "report.html").read_text()


def test_a_run_that_can_save_nothing_is_amber_and_words_of_6000_letters_cost_nothing(
    tmp_path: Path,
) -> None:
    expected = train_plainly(tmp_path / "plain", SCRIPT)

    ended = supervised(
        tmp_path / "run", SCRIPT, settings=(*REPORT, "checkpoint.min_free_gib=1e9"), timeout_s=100
    )

    report, page = told(ended)
    assert ended.returncode == 0
    assert ended.stdout == expected.stdout
    assert differences(ended.result(), expected.result()) == []
    assert ended.stderr.count("supervisor: warning: checkpoint not saved") == 1
    assert "supervisor: writing the report\n" in ended.stderr
    assert NOT_ALL_IS_WELL.search(ended.stderr)
    assert "No checkpoint could be saved" in ended.stderr
    assert report["title"] == "Completed, no checkpoint"
    assert '<header class="warn">' in page
    assert "No checkpoint could be saved" in page
    assert "Nothing has to be done" not in page
    assert len(page) < 2_000_000


def test_a_run_directory_that_is_deleted_is_said_at_once_and_at_the_end(tmp_path: Path) -> None:
    expected = train_plainly(tmp_path / "plain", SCRIPT)

    ended = supervised(tmp_path / "run", SCRIPT, ("out.pt", "run"), settings=REPORT)

    report, page = told(ended)
    assert ended.returncode == 0
    assert differences(ended.result(), expected.result()) == []
    assert "warning: the run directory run was removed while the run went on" in ended.stderr
    assert NOT_ALL_IS_WELL.search(ended.stderr)
    assert report["title"] == "Completed, run directory lost"
    assert '<header class="bad">' in page


@pytest.mark.exhaustive
def test_a_disk_that_is_too_small_is_told(tmp_path: Path) -> None:
    small = tmp_path / "run" / "run"
    small.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(small)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small disk can only be mounted by root")

    try:
        ended = supervised(tmp_path / "run", SCRIPT, settings=REPORT)
        report, _ = told(ended)
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)

    assert ended.returncode == 0
    assert NOT_ALL_IS_WELL.search(ended.stderr)
    assert report["title"] == "Completed, no checkpoint"
