"""The cell magic ``%%supervise``."""

from __future__ import annotations

import shlex
from typing import Any

from supervisor.errors import SupervisorError, UsageError
from supervisor.notebook.launch import LaunchedRun, launch_text

USAGE = "%%supervise [--policy NAME] [--config NAME] [--set KEY=VALUE ...] [--run-dir PATH]"


def supervise(line: str, cell: str) -> LaunchedRun | None:
    """Runs the cell as a script of its own under supervision; shows the result as a table.

    The cell has no names of other cells: what it needs, it imports.
    """
    try:
        return launch_text(cell, "cell", **_options(line))
    except SupervisorError as error:
        print(f"supervisor: error: {error}")
        return None


def load_ipython_extension(ipython: Any) -> None:
    """Called by ``%load_ext supervisor``."""
    ipython.register_magic_function(supervise, magic_kind="cell", magic_name="supervise")


def _options(line: str) -> dict[str, Any]:
    names = {"--policy": "policy", "--config": "config", "--run-dir": "run_dir"}
    found: dict[str, Any] = {"settings": []}
    words = iter(shlex.split(line))
    for word in words:
        value = next(words, None)
        if value is None or (word != "--set" and word not in names):
            raise UsageError(f"%%supervise: {word}: expected {USAGE}")
        if word == "--set":
            found["settings"].append(value)
        else:
            found[names[word]] = value
    return found
