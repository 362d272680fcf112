"""Run a training under supervision.

Options of `supervisor` come before SCRIPT; everything after it belongs to the script.

    supervisor run train.py --epochs 3
    supervisor run --policy fp16 --set checkpoint.every_steps=200 train.py
    supervisor run train.py:main          calls main(run)
    supervisor run -m package.module ARGS

`supervisor run --or-resume`: what lies in --run-dir decides whether a run starts or goes on.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.cli.options import option_values
from supervisor.cli.options.command_parser import TRAINING_EXIT_CODES
from supervisor.cli.options.ranks_options import (
    add_ranks_options,
    check_torchruns,
    node_role_of,
    ranks_of,
    run_node,
    take_operators_ranks,
)
from supervisor.cli.options.script_arguments import ScriptTarget, parse_with_script
from supervisor.cli.options.settings_options import add_settings_options, load_settings
from supervisor.errors import UsageError
from supervisor.ranks import RankLaunch
from supervisor.settings import PolicySettings
from supervisor.storage.run.rundir import new_run_directory

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
        option_values.tell(args, f"{folder}: completed already, nothing to do")
        return 0
    if tuple(args.arguments) != state.arguments:
        option_values.tell(
            args, f"warning: {folder}: continued with the arguments that it began with"
        )
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
    option_values.tell(args, f"{folder}: completed already, nothing to do")
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


LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
"""Modules that start one process per rank."""


EXIT_CODES = TRAINING_EXIT_CODES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "supervisor run [OPTIONS] SCRIPT[:FUNCTION] [SCRIPT_ARGS...]\n"
        "       supervisor run [OPTIONS] -m MODULE [ARGS...]"
    )
    parser.add_argument(
        "--run-dir",
        metavar="PATH",
        type=option_values.path,
        help="where everything about the run is kept (default: runs/<script>-<time>)",
    )
    parser.add_argument(
        "--or-resume",
        action="store_true",
        help="start, or continue the run in --run-dir, or end with 0 if it is completed: one line "
        "for systems that queue a job again",
    )
    add_settings_options(parser)
    parser.add_argument(
        "--resume-args",
        metavar='"ARGS"',
        default="",
        help="appended to the script's arguments from the second attempt on",
    )
    add_ranks_options(parser)
    parser.add_argument("--quiet", action="store_true", help="nothing but the script's own output")


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    arguments = parse_with_script(parser, words)
    arguments.command = ("supervisor", "run", *words)
    return arguments


def execute(args: argparse.Namespace) -> int:
    check_torchruns(args, lambda line: option_values.tell(args, line))
    take_operators_ranks(args)
    ranks = ranks_of(args)
    _check_launcher(args)
    args.node_role = node_role_of(args, ranks)
    follows = args.node_role is not None and not args.node_role.is_first_node
    if args.or_resume:
        code = completed_already(args) if follows else continue_what_lies_there(args, ranks)
        if code is not None:
            return code
    resume_arguments = _words(args.resume_args)
    args.script.check((*args.arguments, *resume_arguments))
    settings, policy = load_settings(args)
    if ranks is None:
        _check_world(policy)

    from supervisor.parent.process.launch import LaunchSpec

    # After the imports, which take a second: a Ctrl-C during them leaves no empty folder.
    has_folder = args.or_resume or follows
    run_dir = args.run_dir if has_folder else _run_dir(args.run_dir, args.script)

    spec = LaunchSpec(
        kind=args.script.kind,
        target=args.script.target,
        function=args.script.function,
        arguments=args.arguments,
        run_dir=run_dir,
        settings=settings,
        policy=policy,
        resume_arguments=resume_arguments,
        quiet=args.quiet,
        command=args.command,
        ranks=ranks,
    )
    return run_node(spec, args.node_role)


def _check_launcher(args: argparse.Namespace) -> None:
    if args.script.kind == "module" and args.script.target in LAUNCHERS:
        raise UsageError(
            f"run: -m {args.script.target}: starts ranks that would not be supervised: give the "
            "training script itself, and --nproc-per-node"
        )


def _check_world(policy: PolicySettings) -> None:
    size = os.environ.get("WORLD_SIZE", "1")
    if size.isdecimal() and int(size) > 1 and not policy.observe_only:
        raise UsageError(
            f"run: WORLD_SIZE is {size}: another launcher has started this rank, and one that is "
            "treated alone diverges from the others: start all with `supervisor run "
            "--nproc-per-node`, or give --policy observe_only to watch this rank"
        )


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--resume-args {text!r}: {error}: quote it as in a shell") from error


def _run_dir(wanted: Path | None, script: ScriptTarget) -> Path:
    """Returns the wanted folder, which must be empty, or a new one named after the script."""
    if wanted is None:
        return new_run_directory(script.stem)
    if (wanted / "run.json").exists():
        raise UsageError(
            f"{wanted}: holds another run: give a new --run-dir, or continue that run with "
            f"`supervisor resume {shlex.quote(str(wanted))}`"
        )
    if wanted.exists() and not wanted.is_dir():
        raise UsageError(f"{wanted}: is a file: give a new folder as --run-dir")
    if wanted.exists() and any(wanted.iterdir()):
        raise UsageError(f"{wanted}: is not empty: give a new folder as --run-dir")
    return wanted
