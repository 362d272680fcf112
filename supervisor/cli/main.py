"""The console script ``supervisor``.

Each command is a module of `cli/commands/`: its docstring is the help text, `add_arguments` fills a
parser, `execute` returns the exit code, and an optional `parse` replaces `parse_args`. Only the
requested command is imported, and heavy packages only inside `execute`.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from supervisor.errors import SupervisorError, UsageError

EXIT_USAGE = 64
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells say it

COMMANDS = (
    "run",
    "resume",
    "report",
    "backtest",
    "watch",
    "list",
    "prune",
    "cases",
    "analyze",
    "explain",
    "verify",
    "drill",
    "diff",
    "check",
    "quantize",
    "policies",
    "configs",
    "doctor",
    "export",
)


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `UsageError` and takes no abbreviations."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            from supervisor.config_check import did_you_mean

            option = unknown[0].partition("=")[0]
            hint = did_you_mean(option, self._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint.rstrip('?')}")
        return found

    def error(self, message: str) -> NoReturn:
        command = self.prog.removeprefix("supervisor ")
        raise UsageError(f"{command}: {message}: see `{self.prog} --help`")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code (CONTRACT: 64 when nothing was started)."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        _check_face()
        code = _dispatch(words)
        sys.stdout.flush()
        return code
    except SupervisorError as error:
        print(f"supervisor: error: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            print(file=sys.stderr)  # the terminal shows ^C: begin a new line for the prompt
        return EXIT_INTERRUPTED
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG and error.filename is not None:
            name = str(error.filename)
            print(
                f"supervisor: error: {name[:60]}...: the name is too long for this file system: "
                "give a shorter one",
                file=sys.stderr,
            )
            return EXIT_USAGE
        if not isinstance(error, BrokenPipeError):
            raise
        # The reader (`head`, `less`) has closed the pipe: write nothing more, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0 if words else EXIT_USAGE
    if words[0] in ("-V", "--version"):
        from supervisor.version import __version__

        print(f"training-supervisor {__version__}")
        return 0
    module = _command(words[0])
    parser = Parser(f"supervisor {words[0]}", (module.__doc__ or "").strip())
    module.add_arguments(parser)
    parse = getattr(module, "parse", None)
    try:
        arguments = parse(parser, words[1:]) if parse else parser.parse_args(words[1:])
    except SystemExit as end:  # --help
        return int(end.code or 0)
    return int(module.execute(arguments))


def _command(name: str) -> ModuleType:
    if name not in COMMANDS:
        from supervisor.config_check import did_you_mean

        hint = did_you_mean(name, COMMANDS) or "; see `supervisor --help`"
        raise UsageError(f"{name}: no such command{hint}")
    return import_module(f"supervisor.cli.commands.{name}")


def _overview() -> str:
    lines = [
        "usage: supervisor COMMAND ...",
        "",
        "Launches a PyTorch training, sees trouble coming, treats it, resumes it, explains it.",
        "",
        "commands:",
    ]
    for name in COMMANDS:
        help_text = (_command(name).__doc__ or "").strip().splitlines()[0]
        lines.append(f"  {name:<10}{help_text}")
    lines += [
        "",
        "options:",
        "  -h, --help      show this; `supervisor COMMAND --help` shows a command's own options",
        "  -V, --version   show the version",
    ]
    return "\n".join(lines)


def _check_face() -> None:
    """PyPI's `supervisor` (supervisord) has the same import name, so their files get mixed."""
    folder = Path(__file__).resolve().parent.parent
    face = sys.modules["supervisor"]
    if (folder / "supervisord.py").exists() or "check_source" not in getattr(face, "__all__", ()):
        raise UsageError(
            f"{folder}: another package of the import name `supervisor` (supervisord) is installed "
            "over this one: pip uninstall -y supervisor training-supervisor && "
            "pip install training-supervisor"
        )


if __name__ == "__main__":
    sys.exit(main())
