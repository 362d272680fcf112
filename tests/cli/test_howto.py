"""The how-tos' commands are carried out, each answer under 60 lines."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from supervisor.parent.process.launch import LaunchSpec
from supervisor.storage.run.run_state import RunState
from supervisor.training_state.sharding import plain_checkpoint
from tests.cli.conftest import Cli, make_run, seen
from tests.cli.test_run import launched

__all__ = ["launched"]
PAGE = (Path(__file__).parents[2] / "docs" / "howto.md").read_text()
ANSWERS = dict(re.findall(r"^## (.+)\n((?:(?!^## ).*\n)*)", PAGE, re.MULTILINE))
LINES = [
    line
    for block in re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]


def test_each_answer_is_short() -> None:
    assert len(ANSWERS) == 8
    assert all(text.count("\n") < 60 for text in ANSWERS.values())


@pytest.mark.parametrize("line", LINES)
def test_each_command_is_taken(
    cli: Cli,
    script: Path,
    launched: list[LaunchSpec],
    monkeypatch: pytest.MonkeyPatch,
    line: str,
) -> None:
    """Training, and the state of a checkpoint, are stood in for."""
    state = RunState(state="completed", script="train.py", cwd=str(script.parent))
    make_run(Path("runs/a"), state, tuple(seen(step, 2.0) for step in range(30)))
    monkeypatch.setattr("supervisor.cli.commands.export._find", lambda *_: Saved)
    monkeypatch.setattr("supervisor.storage.checkpoints.parts.ranks_of", lambda _: 1)
    monkeypatch.setattr(plain_checkpoint, "write_torch", lambda *_: None)
    if line.startswith("supervisor resume"):
        make_resumable(Path("runs/a"), script.parent)

    words = shlex.split(line)
    code, out, err = cli(*words[1:])

    assert words[0] == "supervisor"
    if words[1] in ("run", "resume"):
        assert (code, len(launched)) == (75, 1), err
    else:
        assert code == 0, err
        assert out


class Saved:
    step = 28


def make_resumable(run: Path, folder: Path) -> None:
    from supervisor.config import load_config, load_policy, save_resolved

    state = RunState(state="interrupted", script="train.py", cwd=str(folder))
    rundir = make_run(run, state)
    save_resolved(load_config(), rundir.config_yaml)
    save_resolved(load_policy(), rundir.policy_yaml)
