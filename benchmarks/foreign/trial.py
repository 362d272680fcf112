"""One foreign script: plain twice, supervised, and killed; what was the same."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.foreign.foreign_script import Foreign
from benchmarks.foreign.material import make

WITNESS = Path(__file__).parent / "witness"

IGNORED_FILES = re.compile(r"(^|/)(run|runs|__pycache__|lightning_logs|\.git)/|tfevents|\.pyc$")
"""Files that hold times; and our own run directory."""

DURATION = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)? ?(?:ms|s|sec|seconds|it/s)\b")
"""Times in what is printed: no two runs have the same."""


@dataclass(frozen=True)
class Ended:
    """How one process ended, and what it left."""

    returncode: int
    lines: list[str]
    errors: str
    weights: list[str]
    saves: int
    files: dict[str, bytes]
    seconds: float
    events: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Kill:
    """What came of one kill.

    Attributes:
        place: where it struck, in words.
        said: exactness of the resume; "start" when the script began anew; "" when nothing struck.
        true: "same", or what was different from plain python.
    """

    place: str
    said: str
    true: str
    reason: str = ""

    @property
    def is_false(self) -> bool:
        return self.said == "exact" and self.true != "same"


@dataclass(frozen=True)
class Verdict:
    """What a trial showed.

    Attributes:
        plain: "same" if two runs of plain python are, what is not otherwise.
        healthy: "same", or what was different from plain python.
        treatments: of the healthy run.
    """

    name: str
    plain: str
    healthy: str = ""
    kills: tuple[Kill, ...] = ()
    treatments: int = 0
    steps: int = 0
    seconds: float = 0.0

    @property
    def struck(self) -> list[Kill]:
        return [kill for kill in self.kills if kill.said]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Trial:
    """Runs one script in folders of its own below `folder`."""

    def __init__(self, script: Foreign, checkouts: Path, folder: Path, *, timeout_s: float) -> None:
        self._script = script
        self._source = checkouts / script.checkout
        self._folder = folder / re.sub(r"\W+", "_", script.name)
        self._timeout_s = timeout_s

    def run(self, settings: list[str], options: list[str]) -> Verdict:
        started = time.monotonic()
        first, second = self._start("plain", []), self._start("plain_again", [])
        if first.returncode != 0:
            plain = f"exit {first.returncode}: {first.errors[-200:]}"
            return Verdict(self._script.name, plain, seconds=time.monotonic() - started)
        masked = _unsteady(first, second)
        healthy = self._start("healthy", _supervised(settings, options))
        steps = max((e["step"] or 0 for e in healthy.events), default=0)
        kills = []
        for place, faults, save in self._places(first.saves):
            every = f"checkpoint.every_steps={max(1, min(25, self._script.kill_at // 3))}"
            line = _supervised([*settings, every, *faults], options)
            killed = self._start("killed", line, kill_in_save=save)
            kills.append(_kill(place, first, killed, masked))
        plain = "same" if first.weights == second.weights else "unsteady"
        if plain == "same" and not first.weights:
            plain = "no optimizer"
        return Verdict(
            name=self._script.name,
            plain=plain,
            healthy=_difference(first, healthy, masked),
            kills=tuple(kills),
            treatments=sum(
                e["kind"] == "action"
                and e.get("outcome") == "applied"
                and e["name"] != "checkpoint"
                for e in healthy.events
            ),
            steps=steps,
            seconds=time.monotonic() - started,
        )

    def _places(self, saves: int) -> list[tuple[str, list[str], int]]:
        """Three places: in the training, in an evaluation, in a save; the same every time."""
        chance = random.Random(self._script.name)
        step = self._script.kill_at
        moment = chance.choice(("forward", "backward", "update", "after"))
        found = [(f"step {step}, {moment}", [_fault(step, moment)], 0)]
        found.append(("evaluation", [_fault(max(1, step // 2), "evaluation", every=True)], 0))
        if saves:
            number = chance.randint(1 + saves // 3, saves)
            found.append((f"save {number} of {saves}", [], number))
        return found

    def _start(self, name: str, before: list[str], *, kill_in_save: int = 0) -> Ended:
        top = self._folder / name
        shutil.rmtree(top, ignore_errors=True)
        shutil.copytree(self._source, top, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        make(self._script.material, top)
        folder = top / self._script.folder
        earlier = _files(folder)
        result = top.with_suffix(".json")
        result.unlink(missing_ok=True)
        Path(f"{result}.killed").unlink(missing_ok=True)
        python = before or [sys.executable]
        started = time.monotonic()
        process = subprocess.Popen(
            [*python, *self._script.script.split()],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(
                    [str(WITNESS), *self._path(top), str(_here()), os.environ.get("PYTHONPATH", "")]
                ),
                "FOREIGN_RESULT": str(result),
                "FOREIGN_STEPS": str(self._script.steps),
                "FOREIGN_KILL_IN_SAVE": str(kill_in_save),
                "MPLBACKEND": "agg",
                "OMP_NUM_THREADS": "1",
                "WANDB_MODE": "disabled",
                **dict(pair.split("=", 1) for pair in self._script.environment.split()),
            },
        )
        try:
            out, errors = process.communicate(timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, errors = process.communicate()
            errors += "\ntimed out"
        events = folder / "run" / "events.jsonl"
        files = {k: v for k, v in _files(folder).items() if earlier.get(k) != v}
        told = json.loads(result.read_text()) if result.exists() else {"weights": [], "saves": 0}
        return Ended(
            returncode=process.returncode,
            lines=[DURATION.sub("#", line) for line in out.splitlines()],
            errors=errors,
            weights=sorted(told["weights"]),
            saves=told["saves"],
            files=files,
            seconds=time.monotonic() - started,
            events=[json.loads(e) for e in events.read_text().splitlines()]
            if events.exists()
            else [],
        )

    def _path(self, top: Path) -> list[str]:
        return [str(top / self._script.path)] if self._script.path else []


def _here() -> Path:
    """The checkout that this benchmark belongs to, so that its `supervisor` is the one tried."""
    return Path(__file__).resolve().parents[2]


def _supervised(settings: list[str], options: list[str]) -> list[str]:
    line = [sys.executable, "-m", "supervisor.cli.main", "run", "--run-dir", "run", *options]
    for setting in ["report.enabled=false", "restart.backoff_s=0.05", *settings]:
        line += ["--set", setting]
    return line


def _files(folder: Path) -> dict[str, bytes]:
    names = (p for p in folder.rglob("*") if p.is_file() and not p.is_symlink())
    found = {str(p.relative_to(folder)): p for p in names}
    return {n: p.read_bytes() for n, p in found.items() if not IGNORED_FILES.search(n)}


def _fault(step: int, moment: str, *, every: bool = False) -> str:
    more = ", every: true" if every else ""
    return f"faults=[{{kind: sigkill, step: {step}, moment: {moment}{more}}}]"


def _kill(place: str, plain: Ended, killed: Ended, masked: set[str]) -> Kill:
    resumed = [e for e in killed.events if e["kind"] == "resumed"]
    said = " ".join(e["exactness"] for e in resumed) or "start"
    reason = "; ".join(e["reason"] for e in resumed if e["exactness"] != "exact")
    true = _difference(plain, killed, masked)
    return Kill(place, said if _was_killed(killed) else "", true, reason[:300])


def _was_killed(ended: Ended) -> bool:
    return any(e["kind"] == "worker_exited" and e.get("cause") == "killed" for e in ended.events)


def _unsteady(first: Ended, second: Ended) -> set[str]:
    """Names of what plain python does not repeat itself: it can be asked of nobody."""
    same = len(first.lines) == len(second.lines)
    pairs = zip(first.lines, second.lines, strict=False)
    unsteady = {f"line {n}" for n, (a, b) in enumerate(pairs) if a != b}
    if not same:
        unsteady.add("lines")
    names = first.files.keys() | second.files.keys()
    unsteady |= {n for n in names if first.files.get(n) != second.files.get(n)}
    if first.weights != second.weights:
        unsteady.add("weights")
    return unsteady


def _difference(plain: Ended, other: Ended, masked: set[str]) -> str:
    """What `other` did otherwise than plain python; "same" when nothing."""
    found = []
    if other.returncode != plain.returncode:
        found.append(f"exit {other.returncode}")
    if other.weights != plain.weights and "weights" not in masked:
        found.append("weights")
    files = sorted(plain.files.keys() | other.files.keys())
    changed = [n for n in files if plain.files.get(n) != other.files.get(n) and n not in masked]
    if changed:
        found.append(f"files {', '.join(changed[:3])}")
    if "lines" not in masked and not _same_lines(plain.lines, other.lines, masked):
        found.append("lines")
    return "; ".join(found) or "same"


def _same_lines(plain: list[str], other: list[str], masked: set[str]) -> bool:
    """Whether `other` is the plain output; a killed run tells some of its lines twice.

    The lines before the kill, the last of them perhaps cut; then those from the checkpoint on.
    """

    def are_same(n: int, line: str) -> bool:
        return plain[n] == line or f"line {n}" in masked

    told = 0
    while told < min(len(plain), len(other)) and are_same(told, other[told]):
        told += 1
    if told == len(plain) == len(other):
        return True
    for cut in (0, 1):
        rest = other[told + cut :]
        start = len(plain) - len(rest)
        if 0 <= start <= told and all(are_same(start + n, line) for n, line in enumerate(rest)):
            return True
    return False
