"""``run.json``: what was run, where, with what, and in which state it is.

The versions that a run or checkpoint was made with, found without importing torch. The parent's
orders to each new attempt's workers, in ``orders/attempt_<n>.json``.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import platform
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil
import xxhash

from supervisor import version
from supervisor.masking import mask_command
from supervisor.ranks import RankLaunch
from supervisor.records import WorkerOrder, plain
from supervisor.storage.files.json_files import load_record, parse_json
from supervisor.storage.files.kept_writes import KEPT
from supervisor.storage.files.private_files import write_json
from supervisor.storage.run.lease import Holder, lives
from supervisor.storage.run.rundir import RunDirectory

NEWEST_TRIED = {"python": (3, 13), "torch": (2, 14)}
"""The newest that the whole suite ran with (docs/versions.md)."""
_NAMES = {"python": "Python", "torch": "torch"}


@functools.lru_cache(maxsize=1)
def current_versions() -> dict[str, str]:
    """Returns the versions of Python, torch and this package; "none" for what is not installed."""
    from importlib import metadata  # late: whoever only reads a run does without, which is 18 ms

    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = "none"
    return {
        "python": platform.python_version(),
        "torch": torch,
        "supervisor": version.__version__,
    }


def untried_versions(versions: Mapping[str, str]) -> str:
    """Returns a line about what is newer than any that was tried; empty if nothing is.

    Args:
        versions: see `current_versions`.
    """
    newer = [
        f"{_NAMES[name]} {versions[name]} (tried up to {'.'.join(map(str, newest))})"
        for name, newest in NEWEST_TRIED.items()
        if tuple(map(int, re.findall(r"\d+", versions[name])[:2])) > newest
    ]
    if not newer:
        return ""
    return (
        f"not tried with {' and '.join(newer)}: a resume is called exact only if looks into this "
        "interpreter find what is known to be there"
    )


RUN_KINDS = ("script", "function", "module")
RUN_STATES = ("running", "completed", "gave_up", "interrupted", "failed")
JOB_VARIABLES = (
    "SLURM_JOB_ID",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_RESTART_COUNT",
    "LSB_JOBID",
    "PBS_JOBID",
)
"""By which schedulers name the job to its processes."""
_CHECKSUM = "checksum"
_HELP = "give the directory that `supervisor run` printed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A run as its directory describes it; never holds environment variables (secrets).

    Attributes:
        command: the command line, as given but for its secrets.
        kind: ``script``, ``function`` (``script.py:function``) or ``module`` (``-m``).
        script: path of the script, or name of the module.
        function: name of the function for the kind ``function``, else empty.
        arguments: the script's own, for every attempt.
        resume_arguments: added from the second attempt on.
        cwd: where it was started.
        versions: of Python, torch and this package.
        host, pid, pid_created: the parent process, and when it was made (unix seconds), since
            numbers of processes are used again.
        started_at, ended_at: ISO 8601, UTC; `ended_at` is empty until the end.
        state: ``running``, ``completed``, ``gave_up``, ``interrupted`` or ``failed``.
        attempts: how many were begun.
        exit_code: of the parent; None until the end.
        crash_count: crashes without progress so far.
        ranks: how several ranks were started (`RankLaunch`); empty for one process.
        world_size: how many ranks train together.
        job: what the scheduler calls the job, by the names of its variables (SLURM_JOB_ID ...).
        policy, config: names of those in use; the files lie in the run directory.
    """

    command: tuple[str, ...] = ()
    kind: str = field(default="script", metadata={"one_of": RUN_KINDS})
    script: str = ""
    function: str = ""
    arguments: tuple[str, ...] = ()
    resume_arguments: tuple[str, ...] = ()
    cwd: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    host: str = ""
    pid: int = 0
    pid_created: float = 0.0
    started_at: str = ""
    ended_at: str = ""
    state: str = field(default="running", metadata={"one_of": RUN_STATES})
    attempts: int = 0
    exit_code: int | None = None
    crash_count: int = 0
    policy: str = ""
    config: str = ""
    ranks: Mapping[str, Any] = field(default_factory=dict)
    world_size: int = 1
    job: Mapping[str, str] = field(default_factory=dict)


def new_run_state(
    *,
    command: Sequence[str],
    kind: str,
    script: str,
    function: str = "",
    arguments: Sequence[str] = (),
    resume_arguments: Sequence[str] = (),
    policy: str = "",
    config: str = "",
    ranks: RankLaunch | None = None,
) -> RunState:
    """Returns the state of a run that this process begins now, here."""
    return RunState(
        command=tuple(mask_command(command)),
        kind=kind,
        script=script,
        function=function,
        arguments=tuple(arguments),
        resume_arguments=tuple(resume_arguments),
        cwd=os.getcwd(),
        versions=current_versions(),
        host=socket.gethostname(),
        pid=os.getpid(),
        pid_created=psutil.Process().create_time(),
        started_at=utc_now(),
        policy=policy,
        config=config,
        ranks={} if ranks is None else dataclasses.asdict(ranks),
        job={name: os.environ[name] for name in JOB_VARIABLES if name in os.environ},
    )


def save_run_state(rundir: RunDirectory, state: RunState) -> None:
    """Replaces ``run.json`` and its copy, durably; what the disk refuses is kept (`KeptWrites`)."""
    fields = plain(state)
    text = json.dumps({**fields, _CHECKSUM: _checksum(fields)}, indent=2) + "\n"
    for path in (rundir.run_json, rundir.run_json_copy):
        KEPT.replace(path, text)


def load_run_state(rundir: RunDirectory) -> RunState:
    """Returns what ``run.json`` says; its copy, where it was damaged.

    Raises:
        RunDirectoryError: it is missing, or both are damaged.
    """
    path, copy = rundir.run_json, rundir.run_json_copy
    if path.exists() and is_damaged(path) and not is_damaged(copy):
        path = copy
    return load_record(path, RunState, help_text=_HELP)


def is_damaged(path: Path) -> bool:
    """Whether a ``run.json`` or its copy is not as it was written."""
    try:
        fields = parse_json(path.read_bytes())
        if not isinstance(fields, dict):
            return True
        checksum = fields.pop(_CHECKSUM, None)  # earlier versions wrote none
        return checksum is not None and checksum != _checksum(fields)
    except (OSError, ValueError, RecursionError):
        return True


def _checksum(fields: Mapping[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(fields, sort_keys=True).encode())


def is_run(path: Path | str) -> bool:
    """Whether `path` is a run directory."""
    return RunDirectory(path).run_json.is_file()


def has_live_parent(state: RunState) -> bool:
    """Whether the process that supervises the run still lives; False for one on another host."""
    is_here = state.state == "running" and state.host == socket.gethostname() and state.pid > 0
    return is_here and lives(Holder(pid=state.pid, pid_created=state.pid_created))


def utc_now() -> str:
    """Returns the time as in ``run.json``: ISO 8601, UTC, whole seconds."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def save_order(rundir: RunDirectory, order: WorkerOrder) -> None:
    """Writes the order of its attempt; called by the parent before it starts the workers.

    Raises:
        OSError: the disk refuses.
    """
    write_json(rundir.order(order.attempt), order, durable=True)


def load_order(rundir: RunDirectory, attempt: int) -> WorkerOrder:
    """Returns the order of an attempt; called by each worker at its start.

    Raises:
        RunDirectoryError: it is missing or damaged.
    """
    help_text = "start workers with `supervisor run` or `supervisor resume`, not by hand"
    return load_record(rundir.order(attempt), WorkerOrder, help_text=help_text)
