"""Has the report written by a process of its own: plotting would triple this one's memory."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from supervisor.storage.rundir import RunDirectory

_TIMEOUT_S = 120.0
_SHOWN = 300


def write_report_apart(rundir: RunDirectory) -> tuple[Path | None, str]:
    """Writes the report of a run; returns its path, or None with the reason. Never raises."""
    try:
        if importlib.util.find_spec("supervisor.report.__main__") is None:
            return None, "this installation has no report writer"
        done = subprocess.run(
            [sys.executable, "-m", "supervisor.report", str(rundir.root)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
            # A Ctrl-C of an impatient user must not cost the report of what happened.
            start_new_session=True,
        )
    except (OSError, ImportError, subprocess.SubprocessError) as error:
        return None, f"{type(error).__name__}: {error}"[:_SHOWN]
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        return None, (lines[-1] if lines else f"exit code {done.returncode}")[:_SHOWN]
    html = rundir.report / "report.html"
    return (html, "") if html.exists() else (rundir.report, "")
