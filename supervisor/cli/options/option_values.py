"""Words of the command line: types of values, folders of runs, and what is printed.

Invalid values are refused here, before anything is opened or created.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor.errors import RunDirectoryError, UsageError
from supervisor.records import plain, strict
from supervisor.table import print_table

if TYPE_CHECKING:
    from supervisor.config import ShippedFile
    from supervisor.storage.run.rundir import RunDirectory


def path(text: str) -> Path:
    """Returns a path; refuses an empty string (often an unset shell variable)."""
    if not text.strip():
        raise ArgumentTypeError("is empty: give a path")
    if "\0" in text:
        raise ArgumentTypeError(f"{text!r}: a path cannot contain a zero byte: give another")
    return Path(text)


def whole(low: int, high: int = 2**31 - 1) -> Callable[[str], int]:
    """Returns the type of whole numbers from `low` to `high`."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise ArgumentTypeError(f"{text[:40]}: give a whole number from {low} to {high}")
        return value

    return read


def seconds(low: float, high: float, unit: str = "seconds") -> Callable[[str], float]:
    """Returns the type of times from `low` to `high` seconds, or another unit."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise ArgumentTypeError(f"{text[:40]}: give {unit} from {low:g} to {high:g}")
        return value

    return read


def days(text: str) -> float:
    """Returns a number of days, a century at most."""
    return seconds(0.0, 36525.0, "days")(text)


def names(text: str) -> tuple[str, ...]:
    """Returns the names in a comma-separated list, which must not be empty."""
    found = tuple(text.replace(",", " ").split())
    if not found:
        raise ArgumentTypeError(f"{text!r}: give at least one name (a,b,c)")
    return found


def picture(text: str) -> Path:
    """Returns the path of a picture that can be written."""
    target = path(text)
    check_output("--plot", target, (".png", ".svg", ".pdf"))
    return target


def add_run(parser: ArgumentParser, default: str = "") -> None:
    """Adds RUN, which may be left out where a `default` is taken then."""
    told = f"a run directory (default: {default})" if default else "a run directory"
    nargs = "?" if default else None
    parser.add_argument("run", metavar="RUN", type=path, nargs=nargs, help=told)


def add_json(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def add_plot(parser: ArgumentParser, effect: str) -> None:
    parser.add_argument("--plot", metavar="PATH", type=picture, help=effect)


def add_budget(parser: ArgumentParser, default_s: float) -> None:
    parser.add_argument(
        "--budget-s",
        metavar="N",
        type=seconds(0.001, 30 * 86400),
        default=default_s,
        help=f"begin no replay after so many seconds (default {default_s:g})",
    )


def add_steps(parser: ArgumentParser, least: int, default: int, effect: str) -> None:
    parser.add_argument(
        "--steps",
        metavar="N",
        type=whole(least),
        default=default,
        help=f"{effect} (default {default})",
    )


def check_output(option: str, target: Path, suffixes: tuple[str, ...] = ()) -> None:
    """Checks that `target` can be written, before any work is done.

    Args:
        option: as the user wrote it.
        target: where to; its folder must be there.
        suffixes: allowed endings; empty for any.

    Raises:
        UsageError: a folder, a device, another ending, or no such folder.
    """
    if target.is_dir():
        raise UsageError(f"{option} {target}: is a folder: give a file")
    if target.is_symlink():  # it would be replaced, not followed: /dev/stdout is one
        raise UsageError(f"{option} {target}: is a symbolic link: give the path it leads to")
    if target.exists() and not target.is_file():
        raise UsageError(f"{option} {target}: is not a regular file: give another path")
    if suffixes and target.suffix.lower() not in suffixes:
        wanted = " or ".join(filter(None, (", ".join(suffixes[:-1]), suffixes[-1])))
        raise UsageError(f"{option} {target}: no format is known by its ending: end it in {wanted}")
    if not target.parent.is_dir():
        what = "is not a folder" if target.parent.exists() else "no such folder: make it first"
        raise UsageError(f"{option} {target}: {target.parent}: {what}, or give another path")


def tell(args: Namespace, line: str) -> None:
    """Says something beside the script's own output, unless ``--quiet`` was given."""
    if not args.quiet:
        print(f"supervisor: {line}", file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """Prints `value` (records included) as the one document on standard output.

    NaN and infinities, which JSON does not have, become the strings "nan", "inf" and "-inf".
    """
    print(json.dumps(strict(plain(value)), indent=2, allow_nan=False))


def print_result(result: Any, *, as_json: bool) -> None:
    """Prints `result` in its own words, or its `to_dict`."""
    if as_json:
        print_json(result.to_dict())
    else:
        print(result)


def byte_size(count: int) -> str:
    """Returns a size as people read it: ``0 B``, ``12.3 MiB``."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024.0 and len(units) > 1:
        size /= 1024.0
        units.pop(0)
    return f"{size:.3g} {units[0]}" if size < 1000 else f"{size:.0f} {units[0]}"


RUNS = Path("runs")
"""Where `supervisor run` makes its directories, beside the script."""


def newest_run(*, to_resume: bool = False) -> Path:
    """Returns the newest run in ``runs/``, and says on standard error which one it is.

    Args:
        to_resume: the newest that neither goes on nor has come to its end.

    Raises:
        UsageError: there is none.
    """
    from supervisor.storage.run.lease import living_holder
    from supervisor.storage.run.run_state import has_live_parent, load_run_state
    from supervisor.storage.run.rundir import RunDirectory

    found = []
    for path in RUNS.glob("*/run.json"):
        rundir = RunDirectory(path.parent)
        with contextlib.suppress(RunDirectoryError, OSError):
            run = load_run_state(rundir)
            is_over = run.state == "completed" or has_live_parent(run)
            if not (to_resume and (is_over or living_holder(rundir))):
                found.append((run.started_at, path.parent))
    if not found:
        which = "no run that can be continued" if to_resume else "no run"
        raise UsageError(
            f"{RUNS}: {which}: name one, see `supervisor list`, or start one with `supervisor run`"
        )
    newest = max(found)[1]
    can = " that can be continued" if to_resume else ""
    print(f"supervisor: {newest} (the newest run{can})", file=sys.stderr, flush=True)
    return newest


def open_run(path: Path) -> RunDirectory:
    """Returns the run directory at `path`.

    Raises:
        RunDirectoryError: there is none.
    """
    from supervisor.storage.run.rundir import RunDirectory

    if not (path / "run.json").is_file():
        missing = "is a file" if path.exists() else "no such folder"
        what = "holds no run.json" if path.is_dir() else missing
        raise RunDirectoryError(
            f"{path}: {what}: give the folder that `supervisor run` printed, or see "
            "`supervisor list`"
        )
    return RunDirectory(path)


def print_shipped(heading: str, files: Sequence[ShippedFile], *, as_json: bool) -> None:
    """Prints names and descriptions, and where the files are."""
    if as_json:
        print_json(files)
        return
    print_table((heading, "WHAT IT IS FOR"), [(file.name, file.description) for file in files])
    if files:
        print(f"\nFiles: {files[0].path.parent}")
