"""Everything that a report is made of, read from a run directory in whatever state it is."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import OmegaConf

from supervisor.errors import RunDirectoryError
from supervisor.events.event import E, JournalEvent, of_kind
from supervisor.ranks import FIRST_RANK
from supervisor.report.facts.crash_report import Excerpt
from supervisor.report.facts.figures import integer, moment, number
from supervisor.report.facts.observed_values import Course, read_courses
from supervisor.report.facts.step_table import FIELDS, StepTable, build_step_table, empty_step_table
from supervisor.risk_lines import RiskLines
from supervisor.settings import PolicySettings
from supervisor.storage.files.json_files import build_record, parse_json, read_lines
from supervisor.storage.journal.journal import read_journal
from supervisor.storage.run.run_state import RunState, has_live_parent, load_run_state
from supervisor.storage.run.rundir import RunDirectory
from supervisor.storage.steps.applied_rates import read_rates
from supervisor.storage.steps.flight_reader import read_group_steps
from supervisor.storage.steps.flight_recorder import FlightReader

_THREAD = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]+).*:$", re.MULTILINE)


def arrange_stacks(text: str) -> str:
    """Returns the newest dump with its main thread first, and whether the one before was the same.

    `faulthandler` writes threads newest first, so that the main thread closes a dump; ``text`` may
    hold several dumps. Text without threads comes back as it is.
    """
    dumps = _dumps(text)
    if not dumps:
        return text
    *others, main = dumps[-1]
    said = [_titled("Main thread", main), *(_titled("Another thread", one) for one in others)]
    if len(dumps) > 1:
        same = _frames(dumps[-2][-1]) == _frames(main)
        told = "the same" if same else "not the same"
        why = "it waited" if same else "it was working, only slowly"
        said.insert(0, f"The main thread was at {told} place in the dump before: {why}.")
    return "\n\n".join(said)


def _dumps(text: str) -> list[list[str]]:
    starts = [found.start() for found in _THREAD.finditer(text)]
    dumps: list[list[str]] = []
    known: set[str] = set()
    for index, start in enumerate(starts):
        end = starts[index + 1] if index + 1 < len(starts) else len(text)
        block = text[start:end].rstrip()
        name = _THREAD.findall(block)[0]
        if name in known or not dumps:  # a thread appears once in a dump
            dumps.append([])
            known = set()
        known.add(name)
        dumps[-1].append(block)
    return dumps


def _frames(block: str) -> str:
    return block.partition("\n")[2]


def _titled(title: str, block: str) -> str:
    return f"{title} (most recent call first):\n{_frames(block)}"


T = TypeVar("T")
LOG_LINES = 40
STACK_LINES = 400
TAIL_BYTES = 256 * 1024
MOST_LETTERS = 1000
"""Of a line; what follows is left out and said: sequences and encoded files are not read."""
MOST_STACKS = 16
"""Stack files: of two hangs of eight ranks. Of more the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """What was found in the run directory; what could not be read is named in `problems`."""

    root: Path
    run: dict[str, Any]
    events: tuple[JournalEvent, ...]
    steps: StepTable
    courses: dict[str, Course]
    config: dict[str, Any]
    policy: dict[str, Any]
    anomalies: tuple[dict[str, Any], ...]
    exit_notes: tuple[dict[str, Any], ...]
    bad_samples: tuple[dict[str, Any], ...]
    checkpoints: tuple[dict[str, Any], ...]
    stacks: tuple[Excerpt, ...]
    log_tail: Excerpt | None
    explain: dict[str, Any] | None
    parent_alive: bool
    problems: tuple[str, ...]

    def of(self, kind: type[E]) -> list[E]:
        """Returns the events of this kind in the order of time."""
        return of_kind(self.events, kind)

    @property
    def lines(self) -> RiskLines:
        """The policy's, or what is usual."""
        usual = PolicySettings()
        warn, alarm = (number(self.policy.get(f"{name}_threshold")) for name in ("warn", "alarm"))
        return RiskLines(
            warn=warn if math.isfinite(warn) else usual.warn_threshold,
            alarm=alarm if math.isfinite(alarm) else usual.alarm_threshold,
        )


class _Reader:
    """Reads files and keeps the list of what went wrong instead of failing."""

    def __init__(self, rundir: RunDirectory) -> None:
        self.problems: list[str] = []
        self._rundir = rundir

    def read(self, path: Path, what: str, load: Callable[[], T], missing: T) -> T:
        if not self._rundir.holds(path):
            self.problems.append(
                f"{path.name}: a symbolic link that leads out of the run: not followed."
            )
            return missing
        try:
            return load()
        except FileNotFoundError:
            return missing
        except Exception as error:  # whatever a damaged file makes a parser say
            self.problems.append(f"{path.name}: {what} cannot be read ({_first_line(error)}).")
            return missing

    def json_object(self, path: Path, what: str) -> dict[str, Any]:
        def load() -> dict[str, Any]:
            value = parse_json(path.read_bytes())
            if not isinstance(value, dict):
                raise ValueError("it holds no JSON object")
            return value

        return self.read(path, what, load, {})

    def yaml(self, path: Path, what: str) -> dict[str, Any]:
        def load() -> dict[str, Any]:
            value = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
            return {str(k): v for k, v in value.items()} if isinstance(value, dict) else {}

        return self.read(path, what, load, {})


def load_material(root: Path | str) -> RunData:
    """Reads the run directory `root`; never fails because of what it finds there."""
    rundir = RunDirectory(root)
    reader = _Reader(rundir)
    run = _run(rundir, reader)
    if not rundir.run_json.exists():
        reader.problems.append("run.json is missing: what was run, and when, is not known.")
    events = _events(rundir, reader)
    if not events:
        reader.problems.append("events.jsonl is missing or empty: there is no journal to read.")
    return RunData(
        root=rundir.root,
        run=run,
        events=tuple(events),
        steps=_steps(rundir, reader, integer(run.get("world_size")) or 1),
        courses=read_courses(rundir.root),
        config=reader.yaml(rundir.config_yaml, "the config"),
        policy=reader.yaml(rundir.policy_yaml, "the policy"),
        anomalies=tuple(_anomalies(rundir, reader)),
        exit_notes=tuple(_exit_notes(rundir, reader)),
        bad_samples=tuple(_bad_samples(rundir, reader)),
        checkpoints=tuple(_checkpoints(rundir, reader)),
        stacks=tuple(_stacks(rundir, reader)),
        log_tail=_log_tail(rundir, reader),
        explain=reader.json_object(rundir.report / "explain.json", "the diagnosis by replay")
        or None,
        parent_alive=_has_live_parent(rundir),
        problems=tuple(reader.problems),
    )


def read_excerpts(rundir: RunDirectory) -> tuple[Excerpt | None, tuple[Excerpt, ...]]:
    """Returns the end of the newest log, and the stacks of hangs; what cannot be read is absent."""
    reader = _Reader(rundir)
    return _log_tail(rundir, reader), tuple(_stacks(rundir, reader))


def _run(rundir: RunDirectory, reader: _Reader) -> dict[str, Any]:
    """What run.json says, without fields of a wrong type."""
    run = reader.json_object(rundir.run_json, "the description of the run")
    good = {}
    for name, value in run.items():
        try:
            build_record(RunState, {name: value})
            good[name] = value
        except ValueError as error:
            reader.problems.append(f"run.json: {error}.")
    return good


def _has_live_parent(rundir: RunDirectory) -> bool:
    try:
        return has_live_parent(load_run_state(rundir))
    except RunDirectoryError:
        return False


def _events(rundir: RunDirectory, reader: _Reader) -> list[JournalEvent]:
    """Reads the journal, and what a parent that died did not merge from the ranks' own files."""
    events: list[JournalEvent] = []
    known: set[JournalEvent] = set()
    for path in (rundir.journal, *sorted((rundir.root / "events").glob("rank_*.jsonl"))):
        nothing: list[JournalEvent] = []
        for event in reader.read(path, "the journal", partial(read_journal, path), nothing):
            if path == rundir.journal or event not in known:
                known.add(event)
                events.append(event)
    return sorted(events, key=_order)


def _order(event: JournalEvent) -> float:
    time_s = moment(event.time)
    return time_s if time_s == time_s else 0.0


def _steps(rundir: RunDirectory, reader: _Reader, ranks: int) -> StepTable:
    """What all ranks have recorded, as it was judged."""
    path = rundir.steps(FIRST_RANK)
    if not path.exists():
        return empty_step_table()
    with contextlib.suppress(RunDirectoryError, OSError), FlightReader(path) as recorder:
        if lost := recorder.lost_rows():
            reader.problems.append(
                f"{path.name}: it was cut short, its last {lost} steps are missing."
            )
    no_rates: dict[int, float] = {}
    return reader.read(
        path,
        "the flight recorder",
        lambda: build_step_table(
            read_group_steps(rundir, ranks, all_attempts=True, fields=FIELDS, only_common=False),
            reader.read(path, "its applied learning rates", lambda: read_rates(path), no_rates),
        ),
        empty_step_table(),
    )


def _anomalies(rundir: RunDirectory, reader: _Reader) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for path in sorted((rundir.root / "anomalies").glob("anomalies_rank_*.jsonl")):
        for line in _lines(path, reader):
            try:
                value = parse_json(line)
            except (ValueError, RecursionError):
                reader.problems.append(f"{path.name}: a damaged line was left out.")
                continue
            if isinstance(value, dict):
                found.append(value)
    return sorted(found, key=lambda line: integer(line.get("step")) or 0)


def _exit_notes(rundir: RunDirectory, reader: _Reader) -> list[dict[str, Any]]:
    notes = []
    for path in sorted((rundir.root / "exits").glob("attempt_*/rank_*.json")):
        note = reader.json_object(path, "an exit note")
        if note:
            note.setdefault("attempt", integer(path.parent.name.rpartition("_")[2]))
            note.setdefault("rank", integer(path.stem.rpartition("_")[2]))
            notes.append(note)
    return notes


def _bad_samples(rundir: RunDirectory, reader: _Reader) -> list[dict[str, Any]]:
    path = rundir.root / "bad_samples.jsonl"
    return reader.read(path, "samples that were left out", lambda: read_lines(path), [])


def _checkpoints(rundir: RunDirectory, reader: _Reader) -> list[dict[str, Any]]:
    found = []
    for path in sorted(rundir.checkpoints.glob("step_*/manifest.json")):
        manifest = reader.json_object(path, f"the manifest of {path.parent.name}")
        if manifest and not manifest.get("abandoned"):
            found.append(manifest)
    return found


def _stacks(rundir: RunDirectory, reader: _Reader) -> list[Excerpt]:
    found = []
    paths = sorted(
        (rundir.root / "logs").glob("attempt_*/stacks_*.txt"),
        key=lambda path: (integer(path.parent.name.rpartition("_")[2]) or 0, path.name),
    )
    for path in paths[-MOST_STACKS:]:
        lines = _last(path, reader, STACK_LINES)
        if any(line.strip() for line in lines):
            title = f"{path.parent.name.replace('_', ' ')}, rank {path.stem.rpartition('_')[2]}"
            found.append(Excerpt(title=title, text=arrange_stacks("\n".join(lines))))
    return found


def _log_tail(rundir: RunDirectory, reader: _Reader) -> Excerpt | None:
    logs = sorted(
        (rundir.root / "logs").glob(f"attempt_*/rank_{FIRST_RANK}.log"),
        key=lambda path: integer(path.parent.name.rpartition("_")[2]) or 0,
    )
    if not logs:
        return None
    text = "\n".join(_last(logs[-1], reader, LOG_LINES))
    title = f"end of logs/{logs[-1].parent.name}/{logs[-1].name}"
    return Excerpt(title=title, text=text) if text.strip() else None


def _last(path: Path, reader: _Reader, count: int) -> list[str]:
    """The last lines of a file that people read."""
    return [
        line
        if len(line) <= MOST_LETTERS
        else f"{line[:MOST_LETTERS]} ... and {len(line) - MOST_LETTERS} more letters"
        for line in _lines(path, reader)[-count:]
    ]


def _lines(path: Path, reader: _Reader) -> list[str]:
    def load() -> list[str]:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            return file.read().decode("utf-8", "replace").splitlines()

    return reader.read(path, "the file", load, [])


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
