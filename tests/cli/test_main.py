"""The console script: help, errors, exit codes, and what it leaves alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.cli import main as main_module
from supervisor.cli.main import COMMANDS
from supervisor.version import __version__
from tests.cli.conftest import Cli

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "numpy", "rich", "jinja2", "matplotlib", "omegaconf", "scipy", "yaml")


def start(*words: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
        check=False,
    )


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from supervisor.cli.main import main\n"
        "code = main(['--help'])\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)\n"
        "sys.exit(code)\n"
    )

    done = start("-c", program)

    listed = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")}
    assert done.returncode == 0
    assert set(COMMANDS) <= listed
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(cli: Cli, command: str) -> None:
    code, out, err = cli(command, "--help")

    assert code == 0
    assert out.startswith(f"usage: supervisor {command}")
    assert err == ""


def test_the_version_is_told(cli: Cli) -> None:
    assert cli("--version") == (0, f"training-supervisor {__version__}\n", "")


def test_without_a_command_the_overview_is_shown(cli: Cli) -> None:
    code, out, _ = cli()

    assert code == 64
    assert out.startswith("usage: supervisor COMMAND")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("rum",), "rum: no such command; did you mean run?"),
        (("xyzzy",), "xyzzy: no such command; see `supervisor --help`"),
        (("run",), "run: no SCRIPT given"),
        (("run", "--run-dir"), "run: argument --run-dir: expected one argument"),
        (("run", "--polic", "fp16", "train.py"), "run: unrecognized arguments: --polic"),
        (("list", "--jsn"), "list: unrecognized arguments: --jsn; did you mean --json: see `sup"),
        (
            ("check", "--selct=a", "."),
            "check: unrecognized arguments: --selct=a; did you mean --select: ",
        ),
        (("list", "a", "b"), "list: unrecognized arguments: b: see `supervisor list --help`"),
        (("report",), "report: the following arguments are required: RUN"),
        (("report", "nowhere"), "nowhere: no such folder"),
        (("resume", "."), ".: holds no run.json"),
        (("export", ".", "--to", "excel"), "export: argument --to: invalid choice"),
        (("watch",), "watch: give one of RUN and --demo"),
        (("check", "nowhere"), "nowhere: no such file or folder"),
        (("list", "nowhere"), "nowhere: no such folder"),
        (("backtest", "nowhere.csv"), "nowhere.csv: no such file"),
    ],
)
def test_a_wrong_command_line_ends_with_64_and_one_line(
    cli: Cli, words: tuple[str, ...], expected: str
) -> None:
    code, out, err = cli(*words)

    assert code == 64
    assert out == ""
    assert err.startswith(f"supervisor: error: {expected}")
    assert err.count("\n") == 1


def test_a_reader_that_goes_away_is_no_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)

    done = start("-m", "supervisor.cli.main", "policies", stdout=write_end)
    os.close(write_end)

    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_ends_a_command_without_a_traceback(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(words: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(main_module, "_dispatch", interrupted)

    assert cli("list") == (130, "", "")


def test_the_package_of_the_same_import_name_is_noticed(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "supervisord.py").touch()
    monkeypatch.setattr(main_module, "__file__", str(tmp_path / "cli" / "main.py"))

    code, _, err = cli("list")

    assert code == 64
    assert "pip uninstall" in err


PRECISION = ("diff", "quantize")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_documented(cli: Cli, command: str) -> None:
    pages = {page.stem: page.read_text() for page in (ROOT / "docs").glob("*.md")}
    text = pages["commands"] + pages.get("precision" if command in PRECISION else command, "")

    options = set(re.findall(r"^ +(--[a-z-]+)", cli(command, "--help")[1], re.M)) - {"--help"}

    assert f"`{command}`" in text
    assert not {option for option in options if option not in text}
