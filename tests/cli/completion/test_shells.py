"""TAB in real shells: what is typed with it is run by them."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from supervisor.cli.completion.shells import SHELLS

ROOT = Path(__file__).parents[3]
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
