"""Write the report of a run and say where it is.

It says what happened, why, what was tried, what it cost, and what to do next. With --format or
--output one document is printed or written instead. --against compares two runs. --pictures draws
more than the overview: the gradient of each layer, and observed values.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from supervisor.cli.options import option_values
from supervisor.cli.options.patience import told_if_long
from supervisor.errors import UsageError

_ENDINGS = {".html": "html", ".htm": "html", ".md": "md", ".json": "json"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    option_values.add_run(parser, "the newest in runs/")
    parser.add_argument(
        "--against",
        metavar="RUN",
        type=option_values.path,
        help="compare with this run: curves, first step that differs, settings",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--format", choices=("html", "md", "json"), help="print this document")
    which.add_argument(
        "--json", dest="format", action="store_const", const="json", help="as --format json"
    )
    parser.add_argument(
        "--output", metavar="PATH", type=option_values.path, help="write the document there instead"
    )
    parser.add_argument(
        "--pictures",
        action="store_true",
        help="draw everything as pictures too, beside the report and in its page",
    )


def execute(args: argparse.Namespace) -> int:
    with told_if_long("writing the report"):
        return _execute(args)


def _execute(args: argparse.Namespace) -> int:
    from supervisor.cli.options.option_values import newest_run, open_run
    from supervisor.report.curves.plots import EVERY
    from supervisor.report.write import build_comparison, build_document, write_report
    from supervisor.storage.files.private_files import write_private

    kind = _format(args.format, args.output)
    rundir = open_run(args.run or newest_run())
    output = args.output
    if args.against is not None:
        other = open_run(args.against)
        if kind is None:
            kind, output = "html", rundir.report / f"against_{other.root.resolve().name}.html"
        text = build_comparison(rundir, other, kind)
    elif kind is None:
        try:
            print(write_report(rundir, EVERY if args.pictures else None)["html"])
        except OSError as error:
            raise _not_written(Path(error.filename or rundir.report), error) from error
        return 0
    else:
        text = build_document(rundir, kind, EVERY if args.pictures else ("overview",))
    if output is None:
        print(text)
    else:
        try:
            write_private(output, text)
        except OSError as error:
            raise _not_written(output, error) from error
        print(output)
    return 0


def _not_written(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{path}: {error.strerror or error}: the report cannot be written there: print it with "
        "--format, or give another --output"
    )


def _format(asked: str | None, output: Path | None) -> str | None:
    """Returns the requested document, None for all of them in the run's own folder.

    Raises:
        UsageError: `output` cannot be written, or its ending does not match a format.
    """
    if output is None:
        return asked
    option_values.check_output("--output", output, () if asked else tuple(_ENDINGS))
    told = _ENDINGS.get(output.suffix.lower())
    if asked is not None and told not in (None, asked):
        raise UsageError(f"--output {output}: its ending says {told}, --format {asked}: drop one")
    return asked or told
