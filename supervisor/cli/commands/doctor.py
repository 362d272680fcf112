"""Go through the checklist before a long training.

Checks versions, memory, disk, and saving and restoring a state; with SCRIPT also a few steps of the
training itself; with --nnodes, called on each node, whether these can train together. Exit code 0
if all is well, 1 if not.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from supervisor.cli.options import option_values
from supervisor.cli.options.ranks_options import ranks_of
from supervisor.cli.options.script_arguments import parse_with_script
from supervisor.cli.options.settings_options import add_trial_options, say, trial_script
from supervisor.errors import UsageError

if TYPE_CHECKING:
    from supervisor.analysis.doctor.machine import Check

_JOIN_S = 60
"""Unless --rdzv-conf says otherwise: all are started by hand, at about the same time."""
EXIT_CODES = {"0": "every check passed", "1": "a check failed"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "supervisor doctor [OPTIONS] [SCRIPT[:FUNCTION] [SCRIPT_ARGS...]]"
    option_values.add_steps(parser, 8, 20, "of each trial run")
    add_trial_options(parser, nodes=True)
    parser.add_argument(
        "--run-dir",
        metavar="DIR",
        type=option_values.path,
        help="with --nnodes: the folder that all nodes share",
    )


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    return parse_with_script(parser, words, needs_script=False)


def execute(args: argparse.Namespace) -> int:
    from supervisor.analysis.doctor.doctor import doctor
    from supervisor.table import print_table

    script = None if args.script is None else trial_script("doctor", args)
    met = _meet(args)
    checks = [*doctor(script, steps=args.steps, keep=args.keep, say=say), *met]
    if args.json:
        option_values.print_json(checks)
    else:
        rows = [("ok" if check.ok else "NOT OK", check.name, check.detail) for check in checks]
        print_table(("", "CHECK", "DETAIL"), rows)
    return 0 if all(check.ok for check in checks) else 1


def _meet(args: argparse.Namespace) -> list[Check]:
    """Returns what came of a meeting with the other nodes; nothing for one node.

    Raises:
        UsageError: an option of several nodes is missing or cannot be, or the port is taken.
    """
    from supervisor.analysis.doctor.machine import Check
    from supervisor.parent.nodes.trial_meeting import meet
    from supervisor.storage.run.run_state import current_versions
    from supervisor.storage.run.rundir import RunDirectory

    launch = ranks_of(args)
    if launch is None or not launch.has_several_nodes:
        return []
    if args.script is not None:
        raise UsageError("doctor: --nnodes: checks the nodes alone: leave out SCRIPT")
    if args.run_dir is None:
        raise UsageError("doctor: --nnodes: needs --run-dir, one folder that all nodes share")
    launch = replace(launch, rdzv_conf=f"join_timeout={_JOIN_S},{launch.rdzv_conf}")
    found = meet(launch, RunDirectory(args.run_dir), say)
    if found.missed:
        return [Check(name="nodes meet", ok=False, detail=f"{found.place}: {found.missed}")]
    met = Check(name="nodes meet", ok=True, detail=f"at {found.place}")
    same = ", ".join(f"{name} {version}" for name, version in current_versions().items())
    detail = found.refused or f"one run directory, {args.run_dir}; {same}"
    return [met, Check(name="nodes agree", ok=not found.refused, detail=detail)]
