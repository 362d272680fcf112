"""`supervisor watch DIR` and `--serve`, as a user calls them."""

from __future__ import annotations

import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.report import synthetic_run
from tests.scenarios.runs import supervisor_command


def test_the_printed_address_shows_the_page_until_the_command_is_ended(tmp_path: Path) -> None:
    root = synthetic_run.treated(tmp_path / "run")
    process = subprocess.Popen(
        [*supervisor_command(), "watch", str(root), "--serve", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    with urllib.request.urlopen(address, timeout=30) as page:
        assert b"<title>training-supervisor</title>" in page.read()

    process.send_signal(signal.SIGTERM)  # a shell's background jobs ignore SIGINT
    out, err = process.communicate(timeout=30)

    assert (process.returncode, out) == (0, "")
    assert "Traceback" not in err


def test_of_a_folder_the_list_is_shown(tmp_path: Path, cli: Cli) -> None:
    synthetic_run.treated(tmp_path / "runs" / "one")

    code, out, _ = cli("watch", str(tmp_path / "runs"))

    assert code == 0
    assert "completed" in out
    assert "RUN" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--port 1", "watch --port: is for --serve"),
        ("--host x", "watch --host: is for --serve"),
        ("--serve --host 0.0.0.0", "others can reach it: give a --token"),
        ("--serve --port 99999", "--port"),
        ("--serve --token env:NOT_SET_HERE", "NOT_SET_HERE is not set"),
    ],
)
def test_options_that_do_not_fit_are_told(tmp_path: Path, cli: Cli, words: str, said: str) -> None:
    root = synthetic_run.treated(tmp_path / "run")

    code, _, err = cli("watch", str(root), *words.split())

    assert code == 64
    assert said in err
