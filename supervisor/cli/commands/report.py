"""Write the report of a run and say where it is.

It says what happened, why, what was tried, what it cost, and what to do next. With --format or
--output one document is printed or written instead.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from supervisor.cli.options import option_values
from supervisor.errors import UsageError

_ENDINGS = {".html": "html", ".htm": "html", ".md": "md", ".json": "json"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=option_values.path, help="a run directory")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--format", choices=("html", "md", "json"), help="print this document")
    which.add_argument(
        "--json", dest="format", action="store_const", const="json", help="as --format json"
    )
    parser.add_argument(
        "--output", metavar="PATH", type=option_values.path, help="write the document there instead"
    )


def execute(args: argparse.Namespace) -> int:
    from supervisor.cli.options.run_directory import open_run
    from supervisor.report.write import build_document, write_report
    from supervisor.storage.files.private_files import write_private

    kind = _format(args.format, args.output)
    rundir = open_run(args.run)
    if kind is None:
        try:
            print(write_report(rundir)["html"])
        except OSError as error:
            raise UsageError(
                f"{error.filename or rundir.report}: {error.strerror or error}: the report cannot "
                "be written there: print it with --format, or give --output"
            ) from error
        return 0
    text = build_document(rundir, kind)
    if args.output is None:
        print(text)
    else:
        try:
            write_private(args.output, text)
        except OSError as error:
            raise UsageError(f"{args.output}: {error.strerror}: give another path") from error
        print(args.output)
    return 0


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
