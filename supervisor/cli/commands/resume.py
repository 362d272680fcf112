"""Continue a run that was interrupted, failed or was given up.

The run's own policy and config are used again, with --set on top. With another number of ranks
weights and optimizer state are shared out anew, and the resume is approximate.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.cli.options import option_values
from supervisor.cli.options.command_parser import TRAINING_EXIT_CODES
from supervisor.cli.options.option_values import newest_run, open_run
from supervisor.cli.options.ranks_options import (
    add_node_rank,
    add_nproc_option,
    node_role_of,
    ranks_again,
    run_node,
)
from supervisor.cli.options.settings_options import add_set_option, check_detectors
from supervisor.errors import UsageError
from supervisor.ranks import RankLaunch

if TYPE_CHECKING:
    from supervisor.parent.process.launch import LaunchSpec
    from supervisor.storage.run.run_state import RunState
    from supervisor.storage.run.rundir import RunDirectory


EXIT_CODES = TRAINING_EXIT_CODES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    option_values.add_run(parser, "the newest in runs/ that can be continued")
    parser.add_argument(
        "--from",
        dest="resume_from",
        metavar="last-stable|latest|STEP",
        help="the checkpoint to start from (default: by how the run ended)",
    )
    go_on = "go on with another number of ranks on this node: a number, auto, gpu or cpu"
    add_nproc_option(parser, "M", go_on)
    add_set_option(parser)
    parser.add_argument(
        "--force",
        action="store_true",
        help="even if a supervisor on another host seems to be alive: you know that it is gone",
    )
    add_node_rank(parser)
    parser.add_argument("--quiet", action="store_true", help="nothing but the script's own output")


def execute(args: argparse.Namespace) -> int:
    wish = args.resume_from
    if wish is not None and wish not in ("last-stable", "latest") and not wish.isdecimal():
        raise UsageError(f"resume: --from {wish}: give last-stable, latest or a step")
    if args.run is None:
        args.run = newest_run(to_resume=True)
    return continue_run(args)


def continue_run(args: argparse.Namespace) -> int:
    """Continues the run in the directory `args.run`, and returns the exit code when it has ended.

    Raises:
        UsageError: it is running, completed, or cannot be continued as asked.
    """
    rundir = open_run(args.run)

    from supervisor.storage.run.run_state import load_run_state

    state = load_run_state(rundir)
    ranks = ranks_again(args, state.ranks)
    node_role = getattr(args, "seat", None) or node_role_of(args, ranks)
    if node_role is None or node_role.is_first_node:
        _check_state(args.run, state, args.resume_from)
    spec = _spec(args, rundir, state, ranks)
    _enter(state)
    return run_node(spec, node_role)


def _check_state(path: Path, state: RunState, wish: str | None) -> None:
    """Refuses to resume a run that has ended, unless a person names the checkpoint."""
    from supervisor.storage.run.run_state import has_live_parent

    if has_live_parent(state):
        raise UsageError(
            f"{path}: still running (process {state.pid}): watch it with `supervisor watch {path}`"
        )
    if state.state == "completed" and wish is None:
        raise UsageError(
            f"{path}: ran to its end, there is nothing to continue: go back to a checkpoint with "
            "--from last-stable or --from STEP, or start a new run with `supervisor run`"
        )


def _spec(
    args: argparse.Namespace, rundir: RunDirectory, state: RunState, ranks: RankLaunch | None
) -> LaunchSpec:
    from supervisor.config import load_resolved_config, load_resolved_policy, split_overrides
    from supervisor.parent.process.launch import LaunchSpec

    tell = partial(option_values.tell, args)
    for_config, for_policy = split_overrides(args.set)
    settings = load_resolved_config(rundir.config_yaml, for_config, tell)
    check_detectors(settings, str(rundir.config_yaml))
    return LaunchSpec(
        kind=state.kind,  # type: ignore[arg-type]  # the parent checks what it reads back
        target=state.script,
        function=state.function or None,
        arguments=state.arguments,
        run_dir=rundir.root,
        settings=settings,
        policy=load_resolved_policy(rundir.policy_yaml, for_policy, tell),
        resume_arguments=state.resume_arguments,
        quiet=args.quiet,
        resume=True,
        resume_from=args.resume_from,
        force=args.force,
        command=state.command,
        ranks=ranks,
    )


def _enter(state: RunState) -> None:
    """Changes to the folder where the run was started, for relative paths in its arguments."""
    if state.cwd and Path(state.cwd).is_dir():
        os.chdir(state.cwd)
    elif state.kind != "module" and not Path(state.script).is_file():
        raise UsageError(
            f"{state.cwd}: the folder in which the run was started is gone: put it back, or "
            f"resume in the folder that holds {state.script}"
        )
