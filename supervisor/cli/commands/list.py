"""List the runs in a folder (the same as `runs`)."""

from __future__ import annotations

from supervisor.cli.commands.runs import add_arguments, execute

__all__ = ["add_arguments", "execute"]
