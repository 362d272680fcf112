"""`supervisor run --or-resume`: what lies in --run-dir decides whether a run starts or goes on."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.errors import UsageError
from supervisor.ranks import RankLaunch

if TYPE_CHECKING:
    from supervisor.storage.run.run_state import RunState

_MADE_FILES = ("lease.json", "lease.lock", "config.yaml", "policy.yaml")
_MADE_FOLDERS = ("orders", "steps", "events", "exits", "logs", "alive", "nodes", "lost+found")
MADE_BEFORE_RUN_JSON = frozenset((*_MADE_FILES, *_MADE_FOLDERS))
"""What a start that was cut short leaves behind; lost+found: a volume's own folder."""


def continue_what_lies_there(args: argparse.Namespace, ranks: RankLaunch | None) -> int | None:
    """Continues the run in `args.run_dir` and returns the exit code; None if there is none yet.

    A completed run is left as it is, with 0. The run's own policy, config and arguments are used
    again, with --set on top.

    Raises:
        UsageError: no --run-dir, or it holds something else, or another script's run.
    """
    folder: Path | None = args.run_dir
    if folder is None:
        raise UsageError("run: --or-resume: needs --run-dir, the same one each time")
    if not (folder / "run.json").exists():
        _check_startable(folder)
        return None

    from supervisor.cli.commands.resume import continue_run
    from supervisor.storage.run.run_state import load_run_state
    from supervisor.storage.run.rundir import RunDirectory

    state = load_run_state(RunDirectory(folder))
    _check_same(args, state)
    if state.state == "completed":
        _tell(args, f"{folder}: completed already, nothing to do")
        return 0
    if tuple(args.arguments) != state.arguments:
        _tell(args, f"warning: {folder}: continued with the arguments that it began with")
    if ranks is None:
        args.nproc_per_node = None  # as many as it had
    args.run, args.resume_from, args.force = folder, None, False
    return continue_run(args)


def completed_already(args: argparse.Namespace) -> int | None:
    """Returns 0 if the run in `args.run_dir` is completed: a node that comes later has nothing to
    do."""
    from supervisor.storage.run.run_state import is_run, load_run_state
    from supervisor.storage.run.rundir import RunDirectory

    folder: Path = args.run_dir
    if not is_run(folder) or load_run_state(RunDirectory(folder)).state != "completed":
        return None
    _tell(args, f"{folder}: completed already, nothing to do")
    return 0


def _check_startable(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: is a file: give a new folder as --run-dir")
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    foreign = sorted(names - MADE_BEFORE_RUN_JSON)
    if foreign:
        raise UsageError(
            f"{folder}: holds {foreign[0]}, and no run: give a new folder as --run-dir"
        )


def _check_same(args: argparse.Namespace, state: RunState) -> None:
    """Refuses another script; its folder may differ, as in a new container."""
    asked = (args.script.kind, Path(args.script.target).name, args.script.function or "")
    if asked != (state.kind, Path(state.script).name, state.function):
        raise UsageError(
            f"{args.run_dir}: holds a run of {state.script}, not of {args.script.target}: give "
            "each script a --run-dir of its own"
        )


def _tell(args: argparse.Namespace, line: str) -> None:
    if not args.quiet:
        print(f"supervisor: {line}", file=sys.stderr, flush=True)
