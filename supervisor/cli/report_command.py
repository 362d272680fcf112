"""Write the report of a run and say where it is.

What happened, why, what was tried, what it cost, what to do next. With --format or --output one
document is printed or written instead.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=Path, help="a run directory")
    parser.add_argument("--format", choices=("html", "md", "json"), help="print this document")
    parser.add_argument(
        "--output", metavar="PATH", type=Path, help="write the document there instead"
    )


def execute(args: argparse.Namespace) -> int:
    from supervisor.cli.run_directory import open_run
    from supervisor.errors import UsageError
    from supervisor.report.write import build_document, write_report
    from supervisor.storage.files.private_files import write_private

    rundir = open_run(args.run)
    if args.format is None and args.output is None:
        try:
            print(write_report(rundir)["html"])
        except OSError as error:
            raise UsageError(
                f"{error.filename or rundir.report}: {error.strerror or error}: the report cannot "
                "be written there: print it with --format, or give --output"
            ) from error
        return 0
    text = build_document(rundir, args.format or _format_of(args.output))
    if args.output is None:
        print(text)
    else:
        try:
            write_private(args.output, text)
        except OSError as error:
            raise UsageError(f"{args.output}: {error.strerror}: give another path") from error
        print(args.output)
    return 0


def _format_of(path: Path) -> str:
    return {".md": "md", ".json": "json"}.get(path.suffix, "html")
