"""The commands, and how each one's words are parsed.

Each command is a module of `cli/commands/`: its docstring is the help text, `add_arguments` fills a
parser, `execute` returns the exit code, an optional `parse` replaces `parse_args`, and an optional
`EXIT_CODES` tells codes of its own.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

from supervisor.errors import UsageError

COMMANDS = (
    "init",
    "run",
    "resume",
    "report",
    "backtest",
    "watch",
    "list",
    "runs",
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
    "completion",
)

USUAL_EXIT_CODES = {
    "0": "done",
    "64": "usage, policy or config error: nothing was done",
    "130": "ended by Ctrl-C",
}
"""Of every command that does not say otherwise."""

TRAINING_EXIT_CODES = {
    "0": "the training ran to its end",
    "64": "usage, policy or config error: nothing was started",
    "70": "gave up: crash limit, or a policy's emergency stop; the report says why",
    "75": "interrupted or preempted with a checkpoint: `supervisor resume RUN` continues",
    "130": "Ctrl-C before the first checkpoint; 128 + signal for other signals",
    "other": "the script's own, when another attempt cannot help",
}
"""Of the commands that train."""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `UsageError` and takes no abbreviations."""

    def __init__(self, prog: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
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


def load_command(name: str) -> ModuleType:
    """Returns the module of a command.

    Raises:
        UsageError: there is no such command.
    """
    if name not in COMMANDS:
        from supervisor.config_check import did_you_mean

        hint = did_you_mean(name, COMMANDS) or "; see `supervisor --help`"
        raise UsageError(f"{name}: no such command{hint}")
    return import_module(f"supervisor.cli.commands.{'runs' if name == 'list' else name}")


def summary_of(name: str) -> str:
    """Returns what a command does, in a line."""
    return (load_command(name).__doc__ or "").strip().splitlines()[0]


def build_parser(name: str) -> Parser:
    """Returns the parser of a command.

    Raises:
        UsageError: there is no such command.
    """
    module = load_command(name)
    codes = {**USUAL_EXIT_CODES, **getattr(module, "EXIT_CODES", {})}
    ordered = sorted(codes, key=lambda code: int(code) if code.isdecimal() else 1000)
    width = max(map(len, codes))
    lines = [f"  {code:<{width}}  {codes[code]}" for code in ordered]
    epilog = "\n".join(["exit codes:", *lines])
    parser = Parser(f"supervisor {name}", (module.__doc__ or "").strip(), epilog)
    module.add_arguments(parser)
    return parser
