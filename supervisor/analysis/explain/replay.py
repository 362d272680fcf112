"""Replays a few steps of a run from one of its checkpoints, in a copy of its directory."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from supervisor.analysis.explain.replay_process import ReplayProcesses, run_ranks
from supervisor.codes import Exactness
from supervisor.config import load_resolved_config, load_resolved_policy, save_resolved
from supervisor.errors import RunDirectoryError, SupervisorError
from supervisor.events.event import JournalEvent, of_kind
from supervisor.events.state_events import Resumed
from supervisor.ranks import FIRST_RANK, RankLaunch
from supervisor.records import WorkerOrder
from supervisor.settings import RunSettings
from supervisor.storage.checkpoints.checkpoints import Checkpoint
from supervisor.storage.checkpoints.parts import part_of
from supervisor.storage.files.private_files import write_json
from supervisor.storage.journal.journal import read_journal
from supervisor.storage.run.exit_notes import ExitNote, load_exit_note
from supervisor.storage.run.lease import living_holder
from supervisor.storage.run.run_state import RunState, has_live_parent, load_run_state, save_order
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.flight_reader import read_group_steps

NEVER = 10**9
PROCESS_FAULTS = frozenset(
    {"sigkill", "sigsegv", "sigterm_parent", "exception", "hang", "out_of_memory", "exit"}
)
"""Faults of the machine, which are not repeated in a replay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayChange:
    """What a replay does differently; `experiment` as in `worker.inspection.experiment`."""

    name: str
    skip_steps: tuple[int, ...] = ()
    experiment: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRun:
    """A replay that has ended.

    Attributes:
        rows: its steps, as `read_group_steps` gives them.
        events: the first rank's journal.
        rank: the one that failed first; without a failure the first one.
        note: that rank's exit note, None if it left none.
        returncode: of the worker that failed; negative after a signal.
        timed_out: we ended it because the time was up.
        inspections: rank → step → what `Inspection` wrote.
        output: the end of what the script printed.
    """

    change: ReplayChange
    rows: np.ndarray
    events: list[JournalEvent]
    rank: int
    note: ExitNote | None
    returncode: int
    timed_out: bool
    inspections: dict[int, dict[int, dict[str, Any]]]
    output: str

    @property
    def is_exact(self) -> bool:
        """Whether it started from exactly the recorded state."""
        resumed = of_kind(self.events, Resumed)
        return not resumed or resumed[-1].exactness is Exactness.EXACT

    @property
    def problem(self) -> str:
        """Why it is not exact, or ""."""
        return "" if self.is_exact else of_kind(self.events, Resumed)[-1].reason


class ReplayRunner:
    """Replays steps of one run; never writes to the run's own files.

    Args:
        rundir: the run; no process may be at work in it.
        folder: where the copies are made, on the run's file system if possible.
    """

    def __init__(self, rundir: RunDirectory, folder: Path) -> None:
        self._rundir = rundir
        self._folder = folder
        self._count = 0
        self.state: RunState = load_run_state(rundir)
        self.settings: RunSettings = load_resolved_config(rundir.config_yaml)
        self._processes = ReplayProcesses(self.state.cwd)

    def replay(
        self,
        change: ReplayChange,
        start: Checkpoint | None,
        stop_after: int,
        *,
        timeout_s: float,
    ) -> ReplayedRun:
        """Runs the script from `start`, or from its top, until `stop_after` steps are done.

        All ranks of the run do so together, on this machine. Returns when they have ended, after
        at most `timeout_s`.

        Raises:
            SupervisorError: the copy cannot be made or a process not be started.
        """
        self._count += 1
        copy = RunDirectory(self._folder / f"replay_{self._count}")
        attempt, ranks = 1 if start is None else 2, self.state.world_size
        try:
            self._copy(copy, start, stop_after)
            save_order(
                copy,
                WorkerOrder(
                    attempt=attempt,
                    checkpoint_step=None if start is None else start.step,
                    reason=f"controlled replay: {change.name}",
                    skip_steps=change.skip_steps,
                    fp32=bool(change.experiment.get("fp32")),
                    experiment={"replay": True, **change.experiment},
                ),
            )
            returncode, timed_out = self._run(copy, attempt, timeout_s)
        except OSError as error:
            raise SupervisorError(
                f"{copy.root}: {error.strerror or error}: make room on this disk"
            ) from error
        found = _read(copy, attempt, ranks, change, returncode, timed_out=timed_out)
        shutil.rmtree(copy.root, ignore_errors=True)
        return found

    def _copy(self, copy: RunDirectory, start: Checkpoint | None, stop_after: int) -> None:
        for name in ("", "orders", "steps", "events", "exits", "logs", "alive", "tape"):
            copy.make(copy.root / name)
        settings = load_resolved_config(self._rundir.config_yaml)
        settings.stop_after_steps = stop_after
        settings.checkpoint.every_steps = NEVER
        settings.snapshot.enabled = False
        settings.capture.enabled = False
        settings.report.enabled = False
        settings.trail = False
        policy = load_resolved_policy(self._rundir.policy_yaml)
        policy.observe_only = True
        save_resolved(settings, copy.config_yaml)
        save_resolved(policy, copy.policy_yaml)
        if self._rundir.run_json.exists():
            shutil.copyfile(self._rundir.run_json, copy.run_json)
        struck = self._rundir.root / "faults.json"
        strikes = json.loads(struck.read_text()) if struck.exists() else {}
        first = 0 if start is None else start.step
        write_json(copy.root / "faults.json", faults_to_repeat(settings.faults, strikes, first))
        if start is not None:
            shutil.copytree(start.path, copy.checkpoint(start.step), copy_function=_link_or_copy)
        for rank in range(self.state.world_size):
            replay_log, copied = self._rundir.replay_log(rank), copy.replay_log(rank)
            if start is not None:
                _copy_start(replay_log, copied, part_of(start, rank, self.state.world_size))
            for begun in (".random", ".outside"):
                if replay_log.with_suffix(begun).exists():
                    shutil.copyfile(replay_log.with_suffix(begun), copied.with_suffix(begun))

    def _run(self, copy: RunDirectory, attempt: int, timeout_s: float) -> tuple[int, bool]:
        state, output = self.state, copy.root / "output.txt"
        line = ["--run-dir", str(copy.root), "--attempt", str(attempt), "--rank", str(FIRST_RANK)]
        line += ["--kind", state.kind, "--target", state.script]
        if state.function:
            line += ["--function", state.function]
        line += ["--", *state.arguments, *(state.resume_arguments if attempt > 1 else ())]
        if state.world_size > 1:
            return run_ranks(state.world_size, state.cwd, line, output, timeout_s)
        return self._processes.run(line, output, timeout_s)

    def close(self) -> None:
        """Ends what was started for the replays."""
        self._processes.close()


@contextlib.contextmanager
def replay_studio(rundir: RunDirectory) -> Iterator[ReplayRunner]:
    """Yields a `ReplayRunner` whose copies are removed at the end.

    Raises:
        RunDirectoryError: a process is at work in this run, or it cannot be read.
        SupervisorError: the script or its folder is gone.
    """
    state = load_run_state(rundir)
    if has_live_parent(state):
        raise RunDirectoryError(
            f"{rundir.root}: process {state.pid} is supervising this run: wait for its end"
        )
    holder = living_holder(rundir)
    if holder is not None:
        raise RunDirectoryError(
            f"{rundir.root}: {holder} is supervising this run: wait for its end"
        )
    if state.kind != "module" and not (Path(state.cwd) / state.script).is_file():
        raise SupervisorError(
            f"{rundir.root}: the script {state.script} is no longer in {state.cwd}: put it back"
        )
    if RankLaunch(**state.ranks).has_several_nodes:
        raise SupervisorError(
            f"{rundir.root}: its {state.world_size} ranks stood on several nodes, and are not "
            "replayed on one: read what `supervisor report` says of it"
        )
    with (
        _folder_beside(rundir) as folder,
        contextlib.closing(ReplayRunner(rundir, folder)) as runner,
    ):
        yield runner


def faults_to_repeat(
    faults: list[dict[str, Any]], strikes: Mapping[str, int], first_step: int
) -> dict[str, int]:
    """Returns the ``faults.json`` with which a replay meets the faults of its steps again.

    Faults of the process and ``transient`` ones stand for the machine, and are not repeated.
    """
    counts: dict[str, int] = {}
    for index, fault in enumerate(faults):
        kind, step = str(fault.get("kind", "")), int(fault.get("step", 0))
        key = f"{index}:{kind}:{step}"
        if kind in PROCESS_FAULTS or fault.get("transient"):
            counts[key] = NEVER
        elif step < first_step and not fault.get("every"):
            counts[key] = int(strikes.get(key, 0))
    return counts


def _read(
    copy: RunDirectory,
    attempt: int,
    ranks: int,
    change: ReplayChange,
    returncode: int,
    *,
    timed_out: bool,
) -> ReplayedRun:
    events: list[JournalEvent] = []
    with contextlib.suppress(OSError):
        events = read_journal(copy.rank_journal(FIRST_RANK))
    rank, note = _first_failure(copy, attempt, ranks)
    return ReplayedRun(
        change=change,
        rows=read_group_steps(copy, ranks),
        events=events,
        rank=rank,
        note=note,
        returncode=returncode,
        timed_out=timed_out,
        inspections={rank: _inspections(copy, rank) for rank in range(ranks)},
        output=_end_of(copy.root / "output.txt"),
    )


def _first_failure(copy: RunDirectory, attempt: int, ranks: int) -> tuple[int, ExitNote | None]:
    """The others only tell, later, that it has gone."""
    notes: dict[int, ExitNote] = {}
    for rank in range(ranks):
        with contextlib.suppress(RunDirectoryError, OSError):
            note = load_exit_note(copy, attempt, rank)
            if note is not None:
                notes[rank] = note
    failed = [rank for rank, note in notes.items() if note.kind != "completed"]
    first = min(failed, key=lambda rank: notes[rank].time, default=FIRST_RANK)
    return first, notes.get(first)


def _inspections(copy: RunDirectory, rank: int) -> dict[int, dict[str, Any]]:
    inspections = {}
    for path in copy.inspections(rank).glob("step_*.json"):
        with contextlib.suppress(ValueError):
            found = json.loads(path.read_text())
            inspections[int(found["step"])] = found
    return inspections


def _end_of(path: Path) -> str:
    """The end of the output; empty if there is none."""
    try:
        return path.read_text(errors="replace")[-4000:]
    except OSError:
        return ""


@contextlib.contextmanager
def _folder_beside(rundir: RunDirectory) -> Iterator[Path]:
    """Makes a folder in the run directory, where files can be linked; else elsewhere."""
    inside: str | None = str(rundir.root) if os.access(rundir.root, os.W_OK) else None
    with tempfile.TemporaryDirectory(
        prefix=".replays-", dir=inside, ignore_cleanup_errors=True
    ) as name:
        yield Path(name)


def _link_or_copy(source: str, target: str) -> str:
    """Links if possible: checkpoint files are replaced, never written into."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
    return target


def _copy_start(source: Path, target: Path, start: Checkpoint) -> None:
    """Copies the replay log up to the checkpoint; the worker appends to the copy."""
    left = max(0, int(start.meta.get("tape_offset", 0)))
    if not source.exists():
        return
    with open(source, "rb") as reader, open(target, "wb") as writer:
        while left > 0:
            block = reader.read(min(left, 1 << 20))
            if not block:
                return
            writer.write(block)
            left -= len(block)


def remaining_s(deadline: float) -> float:
    """Returns the seconds until `deadline` on the monotonic clock, at least 0."""
    return max(0.0, deadline - time.monotonic())
