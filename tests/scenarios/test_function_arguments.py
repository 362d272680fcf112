"""Words behind FILE:FUNCTION through a whole run: killed, resumed, refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios import runs

TEXT = """
import functools
import torch

def train(run, epochs: int = 2, *, name: str = "x", tries: int = 1):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(10 * epochs):
        loss = model(torch.randn(8, 4)).pow(2).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(f"trained {name} {epochs} {tries}")

@functools.wraps(train)
def wrapped(*args, **kwargs):
    train(*args, **kwargs)
"""


def test_a_killed_run_of_a_function_goes_on_with_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(TEXT)

    killed = run(
        tmp_path,
        *("run", "--resume-args=--tries 2", "--set", "faults=[{kind: sigkill, step: 17}]"),
        *("--set", "checkpoint.every_steps=5", "script.py:train", "3", "--name=y"),
    )

    assert killed.returncode == 0, killed.stderr
    assert killed.stdout == "trained y 3 2\n"
    assert len(killed.events("worker_exited")) == 2


@pytest.mark.parametrize("command", ["run", "verify", "drill"])
def test_a_word_that_fits_no_parameter_starts_nothing(tmp_path: Path, command: str) -> None:
    (tmp_path / "script.py").write_text(TEXT)

    ended = runs.again(runs.Ended(tmp_path, 0, "", ""), command, "script.py:train", "--epoch", "3")

    said = "script.py:train: --epoch: no such parameter; did you mean --epochs?"
    assert (ended.returncode, ended.stderr) == (64, f"supervisor: error: {said}\n")
    assert not (tmp_path / "runs").exists()


def test_what_only_the_function_can_tell_is_refused_when_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(TEXT)

    ended = run(tmp_path, "run", "script.py:wrapped", "--epochs", "many")

    assert ended.returncode == 64
    assert "script.py:wrapped: --epochs 'many': expected a whole number" in ended.stderr
    assert ended.stdout == ""


def run(folder: Path, name: str, *words: str) -> runs.Ended:
    quick = [word for setting in runs.QUICK for word in ("--set", setting)]
    options = ["--run-dir", name, "--quiet", *quick]
    return runs.again(runs.Ended(folder, 0, "", ""), "run", *options, *words)
