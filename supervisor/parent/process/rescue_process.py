"""Has the states that dead ranks kept in memory written, in a process that has torch."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from supervisor.own_process import command
from supervisor.storage.run.rundir import RunDirectory

TIMEOUT_S = 600.0
"""As long as ranks that live may take for a checkpoint."""
_SHOWN = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescued:
    """A checkpoint that was made of them; see `CheckpointSaved`."""

    step: int
    path: str
    bytes: int
    seconds: float


def rescue_apart(rundir: RunDirectory, step: int, places: Mapping[str, list[str]]) -> Rescued | str:
    """Returns what was saved, or why nothing was. Never raises.

    Args:
        rundir: of the run.
        step: of which all ranks have a whole state.
        places: local rank → the paths of its places.
    """
    order = {"run_dir": str(rundir.root), "step": step, "places": dict(places)}
    try:
        ended = subprocess.run(
            [*command("supervisor.worker.rescue"), json.dumps(order)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            start_new_session=True,  # a Ctrl-C that ends the training must not cost its state
        )
        told = json.loads((ended.stdout.strip().splitlines() or ["{}"])[-1])
        if "problem" in told:
            return str(told["problem"])
        return Rescued(**told)
    except subprocess.TimeoutExpired:
        return f"it took longer than {TIMEOUT_S:.0f} s"
    except (OSError, ValueError, TypeError):
        said = ended.stderr.strip().splitlines() if "ended" in locals() else []
        return (said[-1] if said else "the process that writes it has failed")[:_SHOWN]
