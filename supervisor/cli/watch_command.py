"""Watch a run as it goes: step, loss, risk, alerts, actions.

Ends when the run ends. --demo shows a simulated latent model whose posterior collapses.
"""

from __future__ import annotations

import argparse
import time

from supervisor.cli import option_values
from supervisor.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", metavar="RUN", type=option_values.path, nargs="?", help="a run directory"
    )
    parser.add_argument("--demo", action="store_true", help="simulated data, no run needed")
    parser.add_argument("--once", action="store_true", help="print one frame and end")
    parser.add_argument(
        "--interval", metavar="SECONDS", type=option_values.seconds(0.05, 3600), default=0.5
    )


def execute(args: argparse.Namespace) -> int:
    if (args.run is None) != args.demo:
        raise UsageError("watch: give one of RUN and --demo")

    from rich.console import Console
    from rich.live import Live

    from supervisor.cli.run_directory import open_run
    from supervisor.cli.watch_demo import DemoView
    from supervisor.cli.watch_panel import build_panel
    from supervisor.cli.watch_run import RunView

    source = DemoView() if args.demo else RunView(open_run(args.run))
    console = Console()
    view = source.look()
    if args.once:
        console.print(build_panel(view))
        return 0
    with Live(build_panel(view), console=console, auto_refresh=False) as live:
        while not view.ended:
            time.sleep(args.interval)
            view = source.look()
            live.update(build_panel(view), refresh=True)
    return 0
