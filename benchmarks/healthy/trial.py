"""A healthy training as a real run: alone, or under a policy; treated or not, and how it ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.healthy import train
from supervisor.analysis.trial_run import TrialRun, TrialScript, try_script
from supervisor.codes import ActionOutcome
from supervisor.events.step_events import ActionEvent, AlertEvent
from supervisor.storage.journal.events import PROTECTIVE
from supervisor.storage.steps.flight_reader import read_steps

SCRIPT = str(Path(train.__file__))
ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}


def alone(kind: str, seed: int, folder: Path) -> dict[str, Any]:
    """Runs it with plain python."""
    started = time.monotonic()
    line = [sys.executable, SCRIPT, *_words(kind, seed, folder)]
    done = subprocess.run(line, check=False, env={**os.environ, **ENVIRONMENT})
    return {
        "completed": done.returncode == 0,
        "seconds": time.monotonic() - started,
        "treatments": [],
        "weights": _weights(folder),
    }


def supervised(
    kind: str, seed: int, policy: str, folder: Path, settings: Mapping[str, str]
) -> dict[str, Any]:
    """Runs it under `policy`; ``treatments`` names what has changed the training.

    Raises:
        RuntimeError: not all of its updates were seen: then it proves nothing.
    """
    script = TrialScript(words=(SCRIPT, *_words(kind, seed, folder)), options=("--policy", policy))
    run = try_script(script, folder / "run", settings, environment=ENVIRONMENT)
    steps = len(read_steps(run.rundir, fields=["step"]))
    if steps != train.STEPS:
        told = f"{kind} seed {seed}, {policy}: {steps} of {train.STEPS} were seen, exit code"
        raise RuntimeError(f"{told} {run.returncode}; {', '.join(_treatments(run))}")
    return {
        "completed": run.returncode == 0,
        "seconds": run.seconds,
        "treatments": _treatments(run),
        "alerts": len(run.events(AlertEvent)),
        "weights": _weights(folder),
    }


def _treatments(run: TrialRun) -> list[str]:
    actions = run.events(ActionEvent)
    applied = [e for e in actions if e.outcome is ActionOutcome.APPLIED]
    return [f"{event.name} at {event.step}" for event in applied if event.name not in PROTECTIVE]


def _words(kind: str, seed: int, folder: Path) -> tuple[str, ...]:
    return kind, str(seed), str(folder / "weights.txt")


def _weights(folder: Path) -> str:
    """What the training left of its weights; "" for nothing."""
    path = folder / "weights.txt"
    return path.read_text() if path.exists() else ""
