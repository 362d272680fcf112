"""Prepares a run directory: everything that can go wrong before anything is started."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from supervisor.config import save_resolved
from supervisor.errors import RunDirectoryError, UsageError
from supervisor.events.event import of_kind
from supervisor.events.run_events import WorkerExited
from supervisor.function_arguments import check
from supervisor.parent.process.launch import LaunchSpec
from supervisor.parent.restarts.restart_policy import is_numerical, may_be_sick
from supervisor.records import REPLAY
from supervisor.step_logs.step_log import missing_package
from supervisor.storage.damaged_files import set_damaged_aside
from supervisor.storage.journal.journal import read_journal
from supervisor.storage.run.lease import Lease, take_lease
from supervisor.storage.run.run_state import has_live_parent, load_order, load_run_state
from supervisor.storage.run.rundir import RunDirectory

# Made one by one, because a folder that appears on the way to a deeper one is not private.
_FOLDERS = ("orders", "steps", "events", "exits", "logs", "alive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """A run directory that is ready.

    Attributes:
        rundir: the directory.
        lease: the right to write in it; whoever called `prepare` starts and releases it.
        attempt: number of the first attempt to make.
        was_sick, was_numerical: how the run to be continued ended; see `may_be_sick` and
            `is_numerical`.
        onset_step: where that trouble began, if known.
        way: how the last attempt was to return to its checkpoint.
        damaged: sentences about files that were set aside.
        died: the supervisor that ended without a word, empty if none did; and whether it left an
            attempt of which no end is known.
    """

    rundir: RunDirectory
    lease: Lease
    attempt: int = 1
    was_sick: bool = False
    was_numerical: bool = False
    onset_step: int | None = None
    way: str = REPLAY
    damaged: tuple[str, ...] = ()
    died: str = ""
    died_in_attempt: bool = False


def prepare(spec: LaunchSpec) -> Preparation:
    """Creates the directory, saves config and policy in it, and reads what it already holds.

    Raises:
        UsageError: the script or a log's package is missing, the directory holds another run or
            none to continue, or it cannot be written.
        RunDirectoryError: another process supervises the run in it.
    """
    _check_target(spec)
    missing = missing_package(spec.settings.log)
    if missing is not None and not spec.is_resume:  # a scheduler's resume goes on without its log
        raise UsageError(missing)
    rundir = RunDirectory(spec.run_dir)
    _check_run(spec, rundir)
    try:
        rundir.make(rundir.root)
        lease = take_lease(rundir, force=spec.force)
    except OSError as error:
        raise _not_writable(spec, error) from error
    try:
        return _prepare_held(spec, rundir, lease)
    except OSError as error:
        lease.release()
        raise _not_writable(spec, error) from error
    except BaseException:
        lease.release()
        raise


def _prepare_held(spec: LaunchSpec, rundir: RunDirectory, lease: Lease) -> Preparation:
    _check_run(spec, rundir)  # again: another process may have had the directory meanwhile
    for name in _FOLDERS:
        rundir.make(rundir.root / name)
    damaged = set_damaged_aside(rundir) if spec.is_resume else []
    save_resolved(spec.settings, rundir.config_yaml)
    save_resolved(spec.policy, rundir.policy_yaml)
    if not spec.is_resume:
        return Preparation(rundir=rundir, lease=lease)
    last, attempt, state = _last_exit(rundir), _last_attempt(rundir), load_run_state(rundir)
    notes = any((rundir.root / "exits" / f"attempt_{attempt}").glob("rank_*.json"))
    return Preparation(
        rundir=rundir,
        lease=lease,
        attempt=attempt + 1,
        way=_way(rundir, attempt),
        damaged=tuple(damaged),
        died=f"process {state.pid} on {state.host}" if state.state == "running" else "",
        died_in_attempt=not notes and (last.attempt if last else 0) != attempt,
        was_sick=last is not None and may_be_sick(last.cause, risky=last.risky is True),
        was_numerical=last is not None and is_numerical(last.cause, risky=last.risky is True),
        onset_step=_onset(last),
    )


def _way(rundir: RunDirectory, attempt: int) -> str:
    try:
        return load_order(rundir, attempt).way
    except RunDirectoryError:
        return REPLAY


def _not_writable(spec: LaunchSpec, error: OSError) -> UsageError:
    what = "make room there" if spec.is_resume else "give another --run-dir"
    return UsageError(f"{spec.run_dir}: {error.strerror or error}: cannot be written: {what}")


def _check_run(spec: LaunchSpec, rundir: RunDirectory) -> None:
    if spec.is_resume:
        _check_resumable(rundir)
    elif rundir.run_json.exists():
        raise UsageError(
            f"{spec.run_dir}: holds another run: give a new --run-dir, or continue that run with "
            f"`supervisor resume {spec.run_dir}`"
        )


def _check_target(spec: LaunchSpec) -> None:
    if spec.kind != "module" and not Path(spec.target).is_file():
        raise UsageError(f"{spec.target}: no such file: give the path of a Python script")
    if spec.function:  # a resume: the file may have changed
        check(spec.target, spec.function, spec.worker_arguments(2))


def _check_resumable(rundir: RunDirectory) -> None:
    try:
        state = load_run_state(rundir)
    except RunDirectoryError as error:
        raise UsageError(str(error)) from error
    if has_live_parent(state):
        raise UsageError(
            f"{rundir.root}: process {state.pid} is supervising this run: end it first"
        )


def _last_attempt(rundir: RunDirectory) -> int:
    """Returns the highest attempt of which anything is left, 0 without one."""
    names = [path.stem for path in (rundir.root / "orders").glob("attempt_*.json")]
    names += [path.name for path in (rundir.root / "logs").glob("attempt_*")]
    numbers = [name.rpartition("_")[2] for name in names]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def _last_exit(rundir: RunDirectory) -> WorkerExited | None:
    try:
        exits = of_kind(read_journal(rundir.journal), WorkerExited)
    except OSError:
        return None
    return exits[-1] if exits else None


def _onset(last: WorkerExited | None) -> int | None:
    onset = (last.onset_step if last else None) or -1
    return onset if onset > 0 else None
