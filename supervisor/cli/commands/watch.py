"""Watch a run live: state, step, loss, risk, times, alerts, actions.

Ends when the run ends. Of a folder the list of its runs is shown. --serve shows a page in the
browser instead, until Ctrl-C. --demo shows a simulated latent-variable model whose posterior
collapses.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.cli.options import option_values
from supervisor.cli.options.option_values import newest_run
from supervisor.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.panel import Panel

    from supervisor.cli.watch.demo import DemoView
    from supervisor.cli.watch.read_run import RunView
    from supervisor.cli.watch.view import WatchView

PORT = 8642
"""Of the live page; no well-known service has it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run",
        metavar="RUN|DIR",
        type=option_values.path,
        nargs="?",
        help="a run directory, or a folder of runs (default: the newest run in runs/)",
    )
    parser.add_argument("--demo", action="store_true", help="simulated data, no run needed")
    parser.add_argument("--once", action="store_true", help="print one frame and end")
    parser.add_argument(
        "--json", action="store_true", help="print the present state as one JSON document and end"
    )
    parser.add_argument(
        "--interval", metavar="SECONDS", type=option_values.seconds(0.05, 3600), default=0.5
    )
    page = parser.add_argument_group("a page in the browser")
    page.add_argument("--serve", action="store_true", help="serve it, and print its address")
    page.add_argument(
        "--port",
        type=option_values.whole(0, 65535),
        help=f"default {PORT}; 0 takes a free one",
    )
    page.add_argument(
        "--host", help="address to listen on (default 127.0.0.1); any other needs a --token"
    )
    page.add_argument(
        "--token",
        metavar="TOKEN",
        help="what readers must give; env:NAME or file:PATH says where it is (default: a new one)",
    )


def execute(args: argparse.Namespace) -> int:
    if args.run is not None and args.demo:
        raise UsageError("watch: give one of RUN and --demo")
    if args.run is None and not args.demo:
        args.run = newest_run()
    if args.serve:
        return _serve(args)
    for name in ("port", "host", "token"):
        if getattr(args, name) is not None:
            raise UsageError(f"watch --{name}: is for --serve: add --serve, or leave it out")

    from rich.console import Console

    from supervisor.cli.options.option_values import open_run, print_json
    from supervisor.cli.overview.run_overview import find_runs, runs_data
    from supervisor.cli.watch.demo import DemoView
    from supervisor.cli.watch.panel import build_panel
    from supervisor.cli.watch.read_run import RunView
    from supervisor.cli.watch.view import as_json

    if args.run is not None and _is_folder_of_runs(args.run):
        if args.json:
            print_json(runs_data(find_runs(args.run)))
        else:
            _watch_folder(args.run, Console(), args.interval, once=args.once)
        return 0
    source: RunView | DemoView = DemoView() if args.demo else RunView(open_run(args.run))
    view = source.look()
    if args.json:
        print_json(as_json(view))
        return 0
    console = Console()
    if not args.once and not view.ended:
        view = _follow(source, view, console, args.interval)
    console.print(build_panel(view, console.width))
    return 0


def _is_folder_of_runs(path: Path) -> bool:
    """Whether to list the runs of a folder; one without any is named as no run."""
    return not (path / "run.json").exists() and any(path.glob("*/run.json"))


def _serve(args: argparse.Namespace) -> int:
    """Serves the page until Ctrl-C or SIGTERM."""
    from supervisor.cli.options.option_values import open_run
    from supervisor.cli.serve.server import LOOPBACK, LiveServer
    from supervisor.parent.notices.notice import read_secret

    if args.demo:
        raise UsageError("watch --demo: has no page: leave out --serve, or give a run")
    if not (args.run.is_dir() and not (args.run / "run.json").exists()):
        open_run(args.run)
    token = None if args.token is None else read_secret("--token", args.token)
    port = PORT if args.port is None else args.port
    with LiveServer(args.run, host=args.host or LOOPBACK, port=port, token=token) as server:
        print(server.url, flush=True)
        print("Ctrl-C ends the page, not the run.", file=sys.stderr)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            server.ending.set()
    return 0


def _watch_folder(folder: Path, console: Console, interval_s: float, *, once: bool) -> None:
    """Shows the list of runs until Ctrl-C; once if it is not for a terminal."""
    from rich.live import Live

    from supervisor.cli.overview.run_overview import HEADINGS, SHORTENED, find_runs, run_rows
    from supervisor.table import build_table, print_table

    if once or not console.is_terminal:
        print_table(HEADINGS, run_rows(find_runs(folder)), shortened=SHORTENED)
        return

    def draw() -> RenderableType:
        return build_table(HEADINGS, run_rows(find_runs(folder)), (), SHORTENED)

    with Live(draw(), console=console, auto_refresh=False, screen=True) as live:
        while True:
            time.sleep(max(interval_s, 1.0))
            live.update(draw(), refresh=True)


def _follow(
    source: RunView | DemoView, view: WatchView, console: Console, interval_s: float
) -> WatchView:
    """Shows frame after frame on the whole screen until the last, which is returned."""
    from rich.live import Live

    from supervisor.cli.watch.panel import build_panel

    def draw() -> Panel:
        return build_panel(view, console.width, console.height)

    if not console.is_terminal:  # a file, a pipe: what counts is the last frame
        while not view.ended:
            time.sleep(interval_s)
            view = source.look()
        return view
    with Live(draw(), console=console, auto_refresh=False, screen=True) as live:
        while not view.ended:
            time.sleep(interval_s)
            view = source.look()
            live.update(draw(), refresh=True)
    return view
