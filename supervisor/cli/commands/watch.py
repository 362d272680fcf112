"""Watch a run live: state, step, loss, risk, times, alerts, actions.

Ends when the run ends. --demo shows a simulated latent-variable model whose posterior collapses.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Protocol

from supervisor.cli.options import option_values
from supervisor.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.panel import Panel

    from supervisor.cli.watch.view import WatchView


class FrameSource(Protocol):
    """What provides the frames."""

    def look(self) -> WatchView: ...


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", metavar="RUN", type=option_values.path, nargs="?", help="a run directory"
    )
    parser.add_argument("--demo", action="store_true", help="simulated data, no run needed")
    parser.add_argument("--once", action="store_true", help="print one frame and end")
    parser.add_argument(
        "--json", action="store_true", help="print the present state as one JSON document and end"
    )
    parser.add_argument(
        "--interval", metavar="SECONDS", type=option_values.seconds(0.05, 3600), default=0.5
    )


def execute(args: argparse.Namespace) -> int:
    if (args.run is None) != args.demo:
        raise UsageError("watch: give one of RUN and --demo")

    from rich.console import Console

    from supervisor.cli.options.output import print_json
    from supervisor.cli.options.run_directory import open_run
    from supervisor.cli.watch.demo import DemoView
    from supervisor.cli.watch.panel import build_panel
    from supervisor.cli.watch.read_run import RunView
    from supervisor.cli.watch.view import as_json

    source = DemoView() if args.demo else RunView(open_run(args.run))
    view = source.look()
    if args.json:
        print_json(as_json(view))
        return 0
    console = Console()
    if not args.once and not view.ended:
        view = _follow(source, view, console, args.interval)
    console.print(build_panel(view, console.width))
    return 0


def _follow(source: FrameSource, view: WatchView, console: Console, interval_s: float) -> WatchView:
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
