"""Write the steps of a run, or a checkpoint, for other programs.

A CSV has the columns that `supervisor backtest` reads. A checkpoint becomes one that plain torch
loads, whole weights and optimizer state, however many ranks there were.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.cli.options import option_values
from supervisor.cli.options.patience import told_if_long
from supervisor.errors import UsageError

if TYPE_CHECKING:
    from supervisor.storage.checkpoints.checkpoints import Checkpoint
    from supervisor.storage.run.rundir import RunDirectory

_PLACES = {
    "csv": "steps.csv",
    "tensorboard": "tensorboard",
    "torch": "exported.pt",
    "dcp": "exported_dcp",
}
_ENDINGS = {"csv": (".csv",), "torch": (".pt", ".pth")}
"""Of what becomes a file; the others become folders."""
_OF_STATE = ("torch", "dcp")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    option_values.add_run(parser)
    parser.add_argument("--to", choices=tuple(_PLACES), required=True)
    parser.add_argument(
        "--rank", type=option_values.whole(0), default=0, help="whose steps (default 0)"
    )
    parser.add_argument(
        "--from",
        dest="source",
        metavar="latest|last-stable|STEP",
        help="which checkpoint, with --to torch and --to dcp (default: latest)",
    )
    parser.add_argument(
        "--output",
        metavar="PATH",
        type=option_values.path,
        help="file or folder (default: in RUN: " + ", ".join(_PLACES.values()) + ")",
    )


def execute(args: argparse.Namespace) -> int:
    from supervisor.cli.options.option_values import open_run

    rundir = open_run(args.run)
    if args.source is not None and args.to not in _OF_STATE:
        raise UsageError(f"export: --from {args.source}: goes with --to torch and --to dcp only")
    if args.output is not None:
        _check_output(args.output, args.to)
    target = args.output or rundir.root / _PLACES[args.to]
    write = _write_state if args.to in _OF_STATE else _write_steps
    try:
        with told_if_long(f"writing {target}"):
            written = write(args, rundir, target)
    except OSError as error:
        raise UsageError(f"{target}: {error.strerror or error}: give another --output") from error
    print(f"{target}: {written}")
    return 0


def _write_steps(args: argparse.Namespace, rundir: RunDirectory, target: Path) -> str:
    from supervisor.cli.commands.step_export import write_csv, write_tensorboard

    write = write_csv if args.to == "csv" else write_tensorboard
    return f"{write(rundir, args.rank, target)} steps"


def _write_state(args: argparse.Namespace, rundir: RunDirectory, target: Path) -> str:
    from supervisor.storage.checkpoints.parts import ranks_of
    from supervisor.training_state.sharding.plain_checkpoint import write_dcp, write_torch

    wish = args.source or "latest"
    if wish not in ("latest", "last-stable") and not wish.isdecimal():
        raise UsageError(f"export: --from {wish}: give latest, last-stable or a step")
    checkpoint = _find(rundir, wish)
    (write_torch if args.to == "torch" else write_dcp)(checkpoint, target)
    count = ranks_of(checkpoint)
    joined = "" if count == 1 else f", joined from {count} ranks"
    return f"the checkpoint of step {checkpoint.step}{joined}"


def _find(rundir: RunDirectory, wish: str) -> Checkpoint:
    """Returns the verified checkpoint that is meant by ``latest``, ``last-stable`` or a step.

    Raises:
        UsageError: there is none.
        CheckpointError: it is damaged.
    """
    from supervisor.settings import CheckpointSettings
    from supervisor.storage.checkpoints.checkpoints import CheckpointRing

    ring = CheckpointRing(rundir.checkpoints, CheckpointSettings())
    if wish.isdecimal():
        return ring.get(int(wish))
    found = ring.last_stable() if wish == "last-stable" else ring.newest_verified()
    if found is None:
        raise UsageError(f"{rundir.root}: has no {wish} checkpoint to export")
    return found


def _check_output(target: Path, to: str) -> None:
    """Checks the target: some formats are files, the others folders, which may be new."""
    if to in _ENDINGS:
        option_values.check_output("--output", target, _ENDINGS[to])
    elif not target.is_dir():
        option_values.check_output("--output", target)
        if target.exists():
            raise UsageError(f"{target}: File exists: give a folder or another --output")
