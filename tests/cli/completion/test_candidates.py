"""What may come next, whatever the shell."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.cli.completion.candidates import candidates
from supervisor.cli.completion.shells import answer
from supervisor.cli.options.command_parser import COMMANDS, build_parser
from supervisor.storage.run.run_state import RunState
from tests.cli.conftest import Cli, make_run


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("ru", {"run", "runs"}),
        ("run --polic", {"--policy"}),
        ("run --policy fp", {"fp16"}),
        ("run --policy=fp", {"--policy=fp16"}),
        ("run --config vi", {"vision"}),
        ("run --set checkpoint.every_st", {"checkpoint.every_steps="}),
        ("run --set policy.alarm", {"policy.alarm_threshold="}),
        ("runs --sort ne", {"newest"}),
        ("runs --verdict gave", {"gave_up"}),
        ("runs --json --js", set()),  # given already
        ("report run --format h", {"html"}),
        ("completion f", {"fish"}),
        ("nothing ", set()),
        ("policies ", set()),
    ],
)
def test_words_that_fit(typed: str, offered: set[str]) -> None:
    assert set(candidates(typed.split(" ")).words) == offered


@pytest.mark.parametrize(
    ("typed", "paths"),
    [
        ("run ", "files"),
        ("run train.py --po", "files"),  # an option of the script, not ours
        ("run -m package.module --po", "files"),
        ("run --policy ", "files"),
        ("run --run-dir ", "files"),
        ("init ", "files"),
        ("runs ", "folders"),
        ("resume ", "folders"),
        ("resume --from ", ""),
        ("run --set ", ""),
    ],
)
def test_where_paths_are_offered(typed: str, paths: str) -> None:
    assert candidates(typed.split(" ")).paths == paths


def test_an_option_that_can_be_repeated_is_offered_again() -> None:
    assert "--set" in candidates(["run", "--set", "seed=1", "--s"]).words


def test_runs_are_offered_newest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(("old", "new")):
        run = make_run(tmp_path / "runs" / name, RunState())
        os.utime(run.run_json, (age, age))

    assert list(candidates(["resume", ""]).words) == ["runs/new", "runs/old"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_every_command_is_offered(command: str) -> None:
    known = {name for name in build_parser(command)._option_string_actions if name[:2] == "--"}

    assert set(candidates([command, "--"]).words) == known


def test_bash_gets_what_comes_after_its_last_equals_sign() -> None:
    lines = answer("bash", ["run", "--policy", "=", "fp"])

    assert [line.partition("\t")[0] for line in lines] == ["fp16"]


def test_a_line_is_a_word_and_its_meaning(cli: Cli) -> None:
    code, out, _ = cli("completion", "zsh", "--for", "run", "--qui")

    assert code == 0
    assert out == "--quiet\tnothing but the script's own output\n"


def test_another_shell_is_refused(cli: Cli) -> None:
    code, _, err = cli("completion", "csh")

    assert code == 64
    assert "csh" in err
