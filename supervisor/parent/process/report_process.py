"""Writes the report in a separate process, because plotting needs much memory."""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from supervisor.own_process import command
from supervisor.storage.run.rundir import RunDirectory

_TIMEOUT_S = 120.0
_POLL_S = 0.1
_SHOWN = 300


def write_report_apart(
    rundir: RunDirectory, is_forced: Callable[[], bool] = lambda: False
) -> tuple[Path | None, str]:
    """Writes the report of a run; returns its path, or None with the reason. Never raises.

    Stops when `is_forced` says that nobody wants to wait.
    """
    try:
        if importlib.util.find_spec("supervisor.report.__main__") is None:
            return None, "this installation has no report writer"
        with tempfile.TemporaryFile() as errors:
            code = _run(rundir, errors, is_forced)
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip().splitlines()
    except (OSError, ImportError) as error:
        return None, f"{type(error).__name__}: {error}"[:_SHOWN]
    if code is None:
        return None, f"ended before it was done: supervisor report {rundir.root} writes it"
    if code != 0:
        return None, (said[-1] if said else f"exit code {code}")[:_SHOWN]
    html = rundir.report / "report.html"
    return (html if html.exists() else rundir.report), ""


def _run(rundir: RunDirectory, errors: IO[bytes], is_forced: Callable[[], bool]) -> int | None:
    """Returns the writer's exit code, None if it was ended."""
    process = subprocess.Popen(
        [*command("supervisor.report.__main__"), str(rundir.root)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        # A Ctrl-C that ends the training must not cost the report of what happened.
        start_new_session=True,
    )
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline and not is_forced():
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(_POLL_S)
    process.kill()
    process.wait()
    return None
