"""``run.json``, kept up to date, and the end of a run that another host has taken over."""

from __future__ import annotations

import contextlib
import dataclasses

from supervisor.errors import RunDirectoryError
from supervisor.parent.process.launch import LaunchSpec
from supervisor.parent.terminal.outcome import Outcome
from supervisor.storage.run.lease import Holder, Lease
from supervisor.storage.run.run_state import (
    RunState,
    load_run_state,
    new_run_state,
    save_run_state,
    utc_now,
)
from supervisor.storage.run.rundir import RunDirectory


class RunFile:
    """Keeps ``run.json`` up to date; errors of the disk do not end the run."""

    def __init__(self, rundir: RunDirectory, spec: LaunchSpec) -> None:
        self._rundir = rundir
        self._spec = spec
        self._state = self._initial()

    @property
    def world_size(self) -> int:
        return self._state.world_size

    def start(self) -> None:
        self._save(state="running", ended_at="", exit_code=None)

    def begin_attempt(self, attempt: int) -> None:
        self._save(attempts=attempt)

    def begin_ranks(self, world_size: int) -> None:
        """Notes how many ranks train together."""
        self._state = dataclasses.replace(self._state, world_size=world_size)

    def count_crashes(self, crashes: int) -> None:
        """Notes the crashes without progress so far."""
        self._save(crash_count=crashes)

    def finish(self, outcome: Outcome) -> None:
        self._save(state=outcome.state, exit_code=outcome.exit_code, ended_at=utc_now())

    def _initial(self) -> RunState:
        spec = self._spec
        state = new_run_state(
            command=spec.command,
            kind=spec.kind,
            script=spec.target,
            function=spec.function or "",
            arguments=spec.arguments,
            resume_arguments=spec.resume_arguments,
            policy=spec.policy.name,
            config=spec.settings.name,
            ranks=spec.ranks,
        )
        if not spec.is_resume:
            return state
        with contextlib.suppress(RunDirectoryError):
            earlier = load_run_state(self._rundir)
            # The run stays the one that was begun; who supervises it, and with what, is new.
            return dataclasses.replace(
                state,
                command=earlier.command or state.command,
                started_at=earlier.started_at,
                attempts=earlier.attempts,
            )
        return state

    def _save(self, **changes: object) -> None:
        self._state = dataclasses.replace(self._state, **changes)  # type: ignore[arg-type]
        save_run_state(self._rundir, self._state)


class RunTakenOver(Exception):
    """Ends the outer loop at once; the run itself goes on elsewhere."""

    def __init__(self, holder: Holder) -> None:
        super().__init__(f"{holder} has taken this run over: ended here, nothing more is written")


def check_lease(lease: Lease) -> None:
    """Called before anything is written or started.

    Raises:
        RunTakenOver: the run is no longer ours.
    """
    if lease.taken_by is not None:
        raise RunTakenOver(lease.taken_by)
