"""Processes beside the worker: report, live pictures, rescue, step log."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from supervisor.own_process import command
from supervisor.settings import LogSettings
from supervisor.step_logs.step_log import asked_for
from supervisor.storage.files.private_files import open_private
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


REST = 20.0
"""Pause before the next drawing, as a multiple of the last one's duration: 5 % of one core at most,
and only when nobody else wants it."""

PATIENCE_S = 10.0


class LivePictures:
    """Keeps ``RUN/report/overview.png`` and ``observed.png`` at most some steps old.

    Args:
        rundir: of the run.
        every_steps: steps between two drawings; None draws nothing.
    """

    def __init__(self, rundir: RunDirectory, every_steps: int | None) -> None:
        self._rundir = rundir
        self._every = every_steps
        self._next_step = every_steps or 0
        self._not_before_s = 0.0
        self._begun_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    def look(self, last_step: int | None) -> None:
        """Begins a drawing if one is due and none is under way. Called some times a second.

        Raises:
            OSError: the process could not be started.
        """
        if not self._every or last_step is None:
            return
        now_s = time.monotonic()
        if self._process is not None and self._process.poll() is not None:
            self._process = None
            self._not_before_s = now_s + REST * (now_s - self._begun_s)
        if self._process is not None or last_step < self._next_step or now_s < self._not_before_s:
            return
        self._next_step = last_step - last_step % self._every + self._every
        self._begun_s = now_s
        self._process = subprocess.Popen(
            [*command("supervisor.report.__main__"), "--live", str(self._rundir.root)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is for the training
        )

    def stop(self) -> None:
        """Waits for a drawing under way, or ends it. Called once, after the run."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


TIMEOUT_S = 600.0
"""As long as ranks that live may take for a checkpoint."""
_LEAVES_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedForDeadRanks:
    """A checkpoint that was made of them; see `CheckpointSaved`."""

    step: int
    path: str
    bytes: int
    seconds: float


class SaveForDeadRanks:
    """Started when a rank has failed, so that it has imported torch when the others have ended."""

    def __init__(self, rundir: RunDirectory, places: Mapping[str, list[str]]) -> None:
        """Starts it.

        Args:
            rundir: of the run.
            places: local rank → the paths of its places.

        Raises:
            OSError: it cannot be started.
        """
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        order = {"run_dir": str(rundir.root), "places": dict(places)}
        self._process = subprocess.Popen(
            [*command("supervisor.worker.save_for_dead_ranks"), json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            start_new_session=True,  # a Ctrl-C that ends the training must not cost its state
        )

    def save(self, step: int) -> SavedForDeadRanks | str:
        """Returns what was saved, or why nothing was. Called once; never raises.

        Args:
            step: of which all ranks, which are dead, have a whole state.
        """
        try:
            output, _ = self._process.communicate(f"{step}\n", TIMEOUT_S)
            told = json.loads((output.strip().splitlines() or ["{}"])[-1])
            if "problem" in told:
                return str(told["problem"])
            return SavedForDeadRanks(**told)
        except subprocess.TimeoutExpired:
            return f"it took longer than {TIMEOUT_S:.0f} s"
        except (OSError, ValueError, TypeError):
            self._said.seek(0)
            said = self._said.read().decode(errors="replace").strip().splitlines()
            return (said[-1] if said else "the process that writes it has failed")[:_SHOWN]
        finally:
            self.stop()

    def stop(self) -> None:
        """It is not needed, or has done its work."""
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LEAVES_S)
        self._said.close()


LAST_STEPS_S = 30.0
"""For the last steps, at the end of a run."""


class StepLogProcess:
    """A process of its own: a log that is slow or breaks touches neither parent nor training.

    Raises:
        OSError: it could not be started.
    """

    def __init__(self, rundir: RunDirectory) -> None:
        self._errors = rundir.root / "logs" / "step_logs.txt"
        self._process: subprocess.Popen[bytes] | None
        with open_private(self._errors, "wb") as errors:
            self._process = subprocess.Popen(
                [*command("supervisor.step_logs.__main__"), str(rundir.root)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,  # a Ctrl-C is for the training
            )

    def look(self) -> str | None:
        """Returns why nothing is logged any more, once; None while all is well."""
        if self._process is None or self._process.poll() is None:
            return None
        return self._ended()

    def stop(self) -> str | None:
        """Waits until the last steps are logged; returns what went wrong, if anything did."""
        process = self._process
        if process is None:
            return None
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(LAST_STEPS_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            self._process = None
            return f"the last steps were not logged within {LAST_STEPS_S:.0f} s"
        return self._ended()

    def _ended(self) -> str | None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
        code = None if process is None else process.returncode
        if not code:
            return None
        said = self._errors.read_text(errors="replace").strip().splitlines()
        last = said[-1] if said else f"its process ended with {code}"
        return f"the steps are no longer logged: {last}; see {self._errors}"


def start_step_log(rundir: RunDirectory, settings: LogSettings) -> StepLogProcess | None:
    """Starts the process if a log is asked for.

    Raises:
        OSError: it could not be started.
    """
    return StepLogProcess(rundir) if any(asked_for(settings)) else None
