"""What people expect of any command line: exit codes in --help, --json, NO_COLOR."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.cli.options.command_parser import COMMANDS
from supervisor.storage.run.run_state import RunState
from tests.cli.conftest import Cli, make_run, seen

ROOT = Path(__file__).parents[2]
COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-7][0-9;]*m")
PRINTS_JSON = (
    *("report RUN", "watch RUN", "runs", "list", "prune", "cases", "policies", "configs"),
    *("backtest RUN", "check SCRIPT", "init SCRIPT"),
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    records = tuple(seen(step, 2.0 / (step + 1)) for step in range(30))
    return make_run(tmp_path / "runs" / "a", RunState(state="completed"), records).root


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_the_exit_codes(cli: Cli, command: str) -> None:
    _, out, _ = cli(command, "--help")

    _, _, codes = out.partition("exit codes:\n")
    assert re.search(r"^  0 +\w", codes, re.MULTILINE)
    assert re.search(r"^  64 +usage", codes, re.MULTILINE)


def test_help_of_run_has_the_codes_of_the_manual(cli: Cli) -> None:
    _, out, _ = cli("run", "--help")
    page = (ROOT / "docs" / "commands.md").read_text()
    table = page.partition("## Exit codes of run and resume")[2].partition("\n## ")[0]

    codes = re.findall(r"^\| (\d+) \|", table, re.MULTILINE)

    assert codes == ["0", "64", "70", "75"]
    assert set(codes) <= set(re.findall(r"^  (\d+) ", out, re.MULTILINE))
    assert cli("resume", "--help")[1].partition("exit codes:")[2] == out.partition("exit codes:")[2]


@pytest.mark.parametrize("line", PRINTS_JSON)
def test_a_command_that_reads_prints_one_document(
    cli: Cli, run: Path, script: Path, line: str
) -> None:
    words = line.replace("RUN", str(run)).replace("SCRIPT", str(script)).split()

    code, out, _ = cli(*words, "--json")

    assert code == 0
    json.loads(out)


def test_the_state_of_a_run_as_json(cli: Cli, run: Path) -> None:
    told = json.loads(cli("watch", str(run), "--json")[1])

    assert told["run"] == "a"
    assert (told["step"], told["state"], told["ended"]) == (29, "completed", True)
    assert told["loss"] == pytest.approx(2.0 / 30)
    assert told["risk"] == pytest.approx(0.1)
    assert told["grad_norm"] is None


def test_report_takes_one_way_to_say_json(cli: Cli, run: Path) -> None:
    assert cli("report", str(run), "--json")[1] == cli("report", str(run), "--format", "json")[1]
    code, _, err = cli("report", str(run), "--json", "--format", "md")
    assert code == 64
    assert "not allowed with" in err


@pytest.mark.parametrize("words", [("watch", "RUN"), ("runs",), ("policies",)])
def test_colours_are_for_terminals_without_no_color(run: Path, words: tuple[str, ...]) -> None:
    line = [str(run) if word == "RUN" else word for word in words]

    assert not COLOUR.search(shown(line, run, {"NO_COLOR": "1"}))
    assert "\x1b" not in piped(line, run)
    if words[0] == "watch":
        assert COLOUR.search(shown(line, run, {}))


COMMAND = [sys.executable, "-m", "supervisor.cli.main"]


def environment() -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    return {**clean, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}


def shown(line: list[str], run: Path, more: dict[str, str]) -> str:
    """What a terminal gets."""
    main, other = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, *line],
        cwd=run.parents[1],
        env=environment() | more,
        stdin=other,
        stdout=other,
        stderr=other,
    ) as process:
        os.close(other)
        got = b""
        while True:
            try:
                more_bytes = os.read(main, 65536)
            except OSError:  # the other end is closed
                break
            if not more_bytes:
                break
            got += more_bytes
        assert process.wait(60) == 0
    os.close(main)
    return got.decode(errors="replace")


def piped(line: list[str], run: Path) -> str:
    done = subprocess.run(
        [*COMMAND, *line],
        cwd=run.parents[1],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout + done.stderr
