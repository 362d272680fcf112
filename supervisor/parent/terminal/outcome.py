"""How a run ended, the exit code for it, and where the systems that started it read of it."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from supervisor.codes import ExitCause, ExitSign
from supervisor.records import WorkerExit

EXIT_COMPLETED = 0
EXIT_GAVE_UP = 70
EXIT_INTERRUPTED = 75
_SIGNALLED = 128

RunStateName = Literal["completed", "gave_up", "interrupted", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a run: its state in ``run.json``, our exit code, and why in one sentence."""

    state: RunStateName
    exit_code: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What `Supervisor.run` returns; `summary` is what was printed, line by line."""

    exit_code: int
    state: RunStateName
    run_dir: Path
    summary: tuple[str, ...] = ()


def of_final_exit(
    worker_exit: WorkerExit, *, has_checkpoint: bool, asked_by: int | None
) -> Outcome:
    """Returns the outcome after an exit that is not to be followed by another attempt."""
    evidence = worker_exit.evidence[0] if worker_exit.evidence else worker_exit.cause.value
    if worker_exit.cause is ExitCause.COMPLETED:
        return Outcome(state="completed", exit_code=EXIT_COMPLETED, reason=evidence)
    if worker_exit.cause in (ExitCause.INTERRUPTED, ExitCause.PREEMPTED):
        return interrupted(evidence, has_checkpoint=has_checkpoint, asked_by=asked_by)
    if worker_exit.cause is ExitCause.USER_ERROR and worker_exit.sign is not ExitSign.MISTAKE:
        return Outcome(state="failed", exit_code=_own_code(worker_exit), reason=evidence)
    return gave_up(evidence)


def interrupted(reason: str, *, has_checkpoint: bool, asked_by: int | None) -> Outcome:
    """Returns the outcome after a request to end; without a checkpoint it cannot be resumed."""
    code = EXIT_INTERRUPTED if has_checkpoint else _SIGNALLED + (asked_by or signal.SIGINT)
    return Outcome(state="interrupted", exit_code=code, reason=reason)


def waiting(reason: str, *, has_checkpoint: bool) -> Outcome:
    """Returns the outcome where machines are missing: with them the run goes on."""
    if not has_checkpoint:
        return gave_up(reason)
    return Outcome(state="interrupted", exit_code=EXIT_INTERRUPTED, reason=reason)


def gave_up(reason: str) -> Outcome:
    return Outcome(state="gave_up", exit_code=EXIT_GAVE_UP, reason=reason)


def _own_code(worker_exit: WorkerExit) -> int:
    """The script's own code as a shell would see it; never 0 after a failure."""
    code = worker_exit.returncode
    if code is None or code == 0:
        return 1
    return code if code > 0 else _SIGNALLED - code


TERMINATION = Path("/dev/termination-log")
"""Kubernetes' default `terminationMessagePath`: `kubectl describe pod` shows what is in it."""
_MOST = 4096
"""Bytes that Kubernetes reads of it."""
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Where torchrun, and what starts it (torchx), look for the first failure."""


def leave_last_word(
    outcome: Outcome, line: str, environ: Mapping[str, str], termination: Path = TERMINATION
) -> None:
    """Writes the first closing line for Kubernetes, and for who started this as torchrun.

    What the script has left in the error file stays: it is nearer to the failure. Never raises.
    """
    with contextlib.suppress(OSError):
        if environ.get("KUBERNETES_SERVICE_HOST") and termination.is_file():
            data = line.encode()[:_MOST].decode(errors="ignore")
            termination.write_text(data, encoding="utf-8")
    name = environ.get(ERROR_FILE)
    if not name or outcome.state not in ("gave_up", "failed"):
        return
    with contextlib.suppress(OSError):
        file = Path(name)
        if not file.exists() or not file.stat().st_size:
            file.parent.mkdir(parents=True, exist_ok=True)
            told = {"py_callstack": "", "timestamp": str(int(time.time()))}
            file.write_text(
                json.dumps(
                    {
                        "message": {
                            "message": line,
                            "errorCode": outcome.exit_code,
                            "extraInfo": told,
                        }
                    }
                ),
                encoding="utf-8",
            )
