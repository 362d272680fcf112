"""TAB in real shells: what is typed with it is run by them."""

from __future__ import annotations

import argparse
import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from supervisor.cli.completion import SHELLS, answer, candidates
from supervisor.cli.options.command_parser import COMMANDS, build_parser
from supervisor.storage.run.run_state import RunState
from tests.cli.conftest import Cli, make_run

ROOT = Path(__file__).parents[2]
STARTS = {
    "bash": ["bash", "--noprofile", "--norc", "-i"],
    "zsh": ["zsh", "-f", "-i"],
}
READY = {
    "bash": "PS1='READY>'; source ./completion.bash; bind 'set bell-style none'",
    "zsh": "autoload -U compinit; compinit -u -D; source ./completion.zsh; PS1='READY>'",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with `supervisor` on the PATH, and a script."""
    tools = tmp_path / "bin"
    tools.mkdir()
    command = tools / "supervisor"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m supervisor.cli.main "$@"\n')
    command.chmod(0o755)
    (tmp_path / "a_script.py").write_text("")
    for shell, text in SHELLS.items():
        (tmp_path / f"completion.{shell}").write_text(text)
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
        "TERM": "dumb",
        "INPUTRC": "/dev/null",
    }


class Terminal:
    """A shell in a terminal of its own."""

    def __init__(self, line: list[str], folder: Path) -> None:
        self._fd, other = pty.openpty()
        self._process = subprocess.Popen(
            line,
            stdin=other,
            stdout=other,
            stderr=other,
            cwd=folder,
            env=environment(folder),
            start_new_session=True,
        )
        os.close(other)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def wait_for(self, text: str, limit_s: float = 60.0) -> None:
        """Reads until `text` is shown after what was read before."""
        begin, end_s = len(self.shown), time.monotonic() + limit_s
        while text not in self.shown[begin:]:
            assert time.monotonic() < end_s, self.shown
            if select.select([self._fd], [], [], 0.1)[0]:
                self.shown += os.read(self._fd, 4096).decode(errors="replace")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._fd)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_line_is_completed_and_run(folder: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    terminal = Terminal(STARTS[shell], folder)
    try:
        terminal.type(READY[shell] + "\n")
        terminal.type("echo BE''GUN\n")
        terminal.wait_for("BEGUN")

        terminal.type("echo NOW; supervisor polici\t--js\t\n")
        terminal.wait_for('"name": "fp16"')

        terminal.type("supervisor run --set checkpoint.every_st\t1.5 a_scr\t\n")
        terminal.wait_for("checkpoint.every_steps: expected a whole number, got 1.5")

        terminal.type("supervisor run --policy=observe\t --set seed=-1 a_script.py\n")
        terminal.wait_for("--set seed: expected")
    finally:
        terminal.close()


def test_fish_offers_words_meanings_and_files(folder: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")

    def offered(typed: str) -> list[str]:
        done = subprocess.run(
            ["fish", "--no-config", "-c", f"source completion.fish; complete -C '{typed}'"],
            cwd=folder,
            env=environment(folder),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout.splitlines()

    assert offered("supervisor polic")[0].startswith("policies\tShow the shipped policies")
    assert offered("supervisor run --policy fp")[0].startswith("fp16\tFor FP16")
    assert offered("supervisor run a_scr") == ["a_script.py"]
    assert offered("supervisor run --set seed")[0].split("\t")[0] == "seed="


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
    options = build_parser(command)._option_string_actions.items()
    known = {name for name, one in options if name[:2] == "--" and one.help != argparse.SUPPRESS}

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
