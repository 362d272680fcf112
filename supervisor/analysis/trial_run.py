"""A short supervised run of the user's own script, apart from the user's runs."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from supervisor.errors import SupervisorError
from supervisor.events.event import E, of_kind
from supervisor.storage.files.private_files import make_private
from supervisor.storage.journal.journal import read_journal
from supervisor.storage.run.rundir import RunDirectory

_COMMAND = (sys.executable, "-m", "supervisor.cli.main")
_QUICK = {"report.enabled": "false", "restart.backoff_s": "0.05", "capture.enabled": "false"}
_APART = {
    "metrics_port": "null",
    "metrics_textfile": "''",
    "notify.events": "[]",
    "log.tensorboard": "false",
    "log.wandb": "''",
    "log.mlflow": "''",
    "log.wandb_of_script": "false",
}
"""After the user's options: who is told, and what is logged where, is the real run's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialScript:
    """The script to try.

    Attributes:
        words: the script and its arguments, as after `supervisor run`.
        options: the user's options of `supervisor run` (``--policy``, ``--set``, ...); they
            override the trial's own.
    """

    words: tuple[str, ...]
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        return shlex.join(self.words)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRun:
    """A trial that has ended; `seconds` is wall-clock time including the start of processes.

    Attributes:
        was_cut: its time was over, and it was ended by SIGTERM.
    """

    rundir: RunDirectory
    returncode: int
    seconds: float
    output: str
    was_cut: bool = False

    def events(self, kind: type[E]) -> list[E]:
        """Returns the journal's events of one kind, oldest first; none without a journal."""
        try:
            return of_kind(read_journal(self.rundir.journal), kind)
        except OSError:
            return []

    def must_have_trained(self, script: TrialScript) -> None:
        """Raises SupervisorError unless the run completed, or would have needed longer."""
        if self.returncode != 0 and not self.was_cut:
            lines = [line for line in self.output.splitlines() if line.strip()]
            own = [line for line in lines if not line.startswith("supervisor: ")] or lines
            last = f": {own[-1].strip()[:200]}" if own else ""
            raise SupervisorError(
                f"{script}: the undisturbed run failed (exit code {self.returncode}){last}: "
                "make it run with `supervisor run` first"
            )


def try_script(
    script: TrialScript,
    run_dir: Path,
    settings: Mapping[str, str],
    *,
    resume: bool = False,
    environment: Mapping[str, str] | None = None,
    working_folder: Path | None = None,
    ends_after_s: float | None = None,
) -> TrialRun:
    """Runs the script and returns when it has ended, however it did.

    Its output goes to a file beside `run_dir`; its cases are not filed in the user's library.

    Args:
        script: what to run.
        run_dir: where the run is kept; made if missing.
        settings: config keys and their values, as after ``--set``.
        resume: continue the run in `run_dir` instead.
        environment: additional variables.
        working_folder: in which it runs; None for the current one.
        ends_after_s: seconds after which it is ended; None: the script decides.

    Raises:
        OSError: the interpreter cannot be started.
    """
    chosen = [f"--set={key}={value}" for key, value in settings.items()]
    if resume:
        line = [*_COMMAND, "resume", *chosen, str(run_dir)]
    else:
        quick = [f"--set={key}={value}" for key, value in _QUICK.items()]
        line = [*_COMMAND, "run", "--run-dir", str(run_dir), *quick, *chosen, *script.options]
        line += [f"--set={key}={value}" for key, value in _APART.items()]
        line += ["--", *script.words]
    log = run_dir.with_name(f"{run_dir.name}{'.resumed' if resume else ''}.txt")
    cases = str(run_dir.with_name("cases.sqlite"))
    started, was_cut = time.monotonic(), False
    with open(log, "wb") as output:
        process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=working_folder,
            env={**os.environ, "SUPERVISOR_CASES": cases, **(environment or {})},
        )
        try:
            process.wait(ends_after_s)
        except subprocess.TimeoutExpired:
            was_cut = True
        finally:
            _end(process)
    return TrialRun(
        rundir=RunDirectory(run_dir),
        returncode=process.wait(),
        seconds=time.monotonic() - started,
        output=log.read_text(errors="replace"),
        was_cut=was_cut,
    )


@contextlib.contextmanager
def trial_folder(keep: Path | None) -> Iterator[Path]:
    """Yields a folder for the runs of a trial: a temporary one, or `keep`, which stays.

    Raises:
        SupervisorError: `keep` holds something already, or cannot be made.
    """
    if keep is None:
        with tempfile.TemporaryDirectory(
            prefix="supervisor-trial-", ignore_cleanup_errors=True
        ) as name:
            yield Path(name)
        return
    try:
        make_private(keep)
        taken = any(keep.iterdir())
    except OSError as error:
        raise SupervisorError(
            f"--keep {keep}: {error.strerror or error}: give a folder that can be made"
        ) from error
    if taken:
        raise SupervisorError(f"--keep {keep}: is not empty: give a new folder")
    yield keep.absolute()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends what is still running after an interruption, first by SIGTERM, then by SIGKILL."""
    for signum in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        process.send_signal(signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10.0)
