"""A trial run leaves alone what belongs to the user's real run."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from supervisor.analysis.trial_run import TrialScript, try_script

SCRIPT = """
import torch
model = torch.nn.Linear(2, 1); optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad(); model(torch.ones(4, 2)).mean().backward(); optimizer.step()
"""


def test_the_port_and_the_file_of_the_metrics_are_left_to_the_real_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    Path("real.prom").write_text("of the real run")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = (f"--set=metrics_port={port}", "--set=metrics_textfile=real.prom")

        trial = try_script(
            TrialScript(words=("train.py",), options=options), tmp_path / "trial", {}
        )

    assert trial.returncode == 0, trial.output
    assert Path("real.prom").read_text() == "of the real run"
