"""The process that writes the steps into TensorBoard and the like (`log` in a config)."""

from __future__ import annotations

import subprocess

from supervisor.own_process import command
from supervisor.settings import LogSettings
from supervisor.step_logs.step_log import asked_for
from supervisor.storage.files.private_files import open_private
from supervisor.storage.run.rundir import RunDirectory

PATIENCE_S = 30.0
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

    def end(self) -> str | None:
        """Waits until the last steps are logged; returns what went wrong, if anything did."""
        process = self._process
        if process is None:
            return None
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            self._process = None
            return f"the last steps were not logged within {PATIENCE_S:.0f} s"
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
