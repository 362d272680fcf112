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
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.foreign.foreign_script import Foreign
from benchmarks.foreign.material import make
from benchmarks.foreign.verdict import Kill, Verdict
from benchmarks.generated.comparison import same_saved

WITNESS = Path(__file__).parent / "witness"

IGNORED_FILES = re.compile(
    r"(^|/)(run|runs|__pycache__|lightning_logs|\.git)/|tfevents|log_\d{10}\.txt$|\.pyc$"
)
"""Files that hold times, or are named by one; and our own run directory."""

SALT = "0"
"""Of plain python's hashes: what a supervised script has by itself, else its sets differ."""

_NAMED_ANEW = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|"
    r"\b[0-9a-z]{8}\b|\b(?=[a-z]*\d)[0-9a-z]{8,}\b|\d+"
)
KILLS, TRIES = 3, 4
DURATION = re.compile(
    r" *\d+(?:\.\d+)?(?:e-?\d+)? ?(?:ms|s|sec|seconds|it/s)\b|(?<=fps|sed)  +\| +\d+ +\|"
)
"""Times in what is printed, with the spaces that align them: no two runs have the same."""
_BAR = re.compile(r"\d+/[\d?]+ \[[\d:?]+<|^[\s\x1b\[A]*$")
"""A bar that shows progress is drawn again as time goes by."""


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


def _commit(checkout: Path) -> str:
    """Returns the checkout's commit, short; empty where it is none of git's."""
    line = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(line, capture_output=True, text=True, check=False).stdout.strip()


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
            took = round(time.monotonic() - started)
            return Verdict(self._script.name, plain, seconds=took)
        masked = _unsteady(first, second)
        chance = random.Random(self._script.name)
        step = self._script.kill_at
        every = f"checkpoint.every_steps={max(1, min(25, step // 3))}"

        def killed(fault: list[str], save: int = 0) -> Ended:
            line = self._supervised([*settings, every, *fault], options)
            return self._start("killed", line, kill_in_save=save)

        def fault(step: int, moment: str, *, every: bool = False) -> str:
            rank = (
                f", rank: {chance.randrange(self._script.ranks)}" if self._script.ranks > 1 else ""
            )
            more = ", every: true" if every else ""
            return f"faults=[{{kind: sigkill, step: {step}, moment: {moment}{rank}{more}}}]"

        healthy = killed([fault(max(1, step // 2), "evaluation", every=True)])
        kills = []
        if _was_killed(healthy):
            kills.append(_kill("evaluation", first, healthy, masked))
            healthy = self._start("healthy", self._supervised(settings, options))
        steps = max((e["step"] or 0 for e in healthy.events), default=0)
        steps = steps or self._script.steps or 2 * step
        if first.saves:
            number = chance.randint(1 + first.saves // 3, first.saves)
            place = f"save {number} of {first.saves}"
            kills.append(_kill(place, first, killed([], number), masked))
        moments = ["backward", "update", "after", "forward"]
        chance.shuffle(moments)
        for at in (step, *(chance.randint(1, max(1, steps - 1)) for _ in range(TRIES))):
            if sum(bool(kill.said) for kill in kills) == KILLS or not moments:
                break
            ended = killed([fault(at, moments[0])])
            kills.append(_kill(f"step {at}, {moments[0]}", first, ended, masked))
            if not kills[-1].said:  # a script without modules has no forward to be killed in
                del moments[0]
        plain = "same" if first.weights == second.weights else "unsteady"
        if plain == "same" and not first.weights:
            plain = "no optimizer"
        return Verdict(
            name=self._script.name,
            plain=plain,
            healthy=_difference(first, healthy, masked),
            kills=tuple(kills),
            treatments=_treatments(healthy),
            steps=steps,
            seconds=round(time.monotonic() - started),
            date=time.strftime("%Y-%m-%d"),
            torch=version("torch"),
            version=_commit(self._source),
        )

    def run_at(self, shares: Sequence[float], versions: dict[str, str]) -> Verdict:
        """Healthy, and killed once at each of these shares of its steps, in runs of their own.

        Plain python runs a second time only where something came out otherwise.

        Args:
            versions: of the libraries, for the verdict.
        """
        started, name, today = time.monotonic(), self._script.name, time.strftime("%Y-%m-%d")
        told = {"date": today, "torch": version("torch"), "versions": versions}
        first = self._start("plain", [])
        if first.returncode != 0:
            return Verdict(name, f"exit {first.returncode}: {first.errors[-200:]}", **told)
        healthy = self._start("healthy", self._supervised([], []))
        steps = max((e["step"] or 0 for e in healthy.events), default=0)
        every = f"checkpoint.every_steps={max(1, min(10, steps // 8))}"
        places = sorted({int(share * steps) for share in shares} - {0})
        faults = [f"faults=[{{kind: sigkill, step: {at}, moment: update}}]" for at in places]
        killed = [self._start("killed", self._supervised([every, fault], [])) for fault in faults]
        masked: set[str] = set()
        if any(_difference(first, one, masked) != "same" for one in (healthy, *killed)):
            masked = _unsteady(first, self._start("plain_again", []))
        pairs = zip(places, killed, strict=True)
        return Verdict(
            name=name,
            plain="unsteady" if "weights" in masked else "same",
            healthy=_difference(first, healthy, masked),
            kills=tuple(_kill(f"step {at}", first, one, masked) for at, one in pairs),
            treatments=_treatments(healthy),
            steps=steps,
            seconds=round(time.monotonic() - started),
            **told,
        )

    def _start(self, name: str, before: list[str], *, kill_in_save: int = 0) -> Ended:
        top = self._folder / name
        shutil.rmtree(top, ignore_errors=True)
        shutil.copytree(self._source, top, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        make(self._script.material, top)
        folder = top / self._script.folder
        earlier = _files(folder)
        result = top.with_suffix(".json")
        for earlier_run in top.parent.glob(f"{result.name}*"):
            earlier_run.unlink()
        python = before or [sys.executable, *self._torchrun()]
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
                "PYTHONPATH": os.pathsep.join([str(WITNESS), *self._path(top), str(_here())]),
                "FOREIGN_RESULT": str(result),
                "FOREIGN_STEPS": str(self._script.steps),
                "FOREIGN_KILL_IN_SAVE": str(kill_in_save),
                "MPLBACKEND": "agg",
                "OMP_NUM_THREADS": "1",
                "WANDB_MODE": "disabled",
                **dict(pair.split("=", 1) for pair in self._script.environment.split()),
                **({} if before else {"PYTHONHASHSEED": SALT}),
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
        told = [json.loads(path.read_text()) for path in top.parent.glob(f"{result.name}.rank*")]
        return Ended(
            returncode=process.returncode,
            lines=self._lines(out),
            errors=errors,
            weights=sorted(digest for one in told for digest in one["weights"]),
            saves=max((one["saves"] for one in told), default=0),
            files=files,
            seconds=time.monotonic() - started,
            events=[json.loads(e) for e in events.read_text().splitlines()]
            if events.exists()
            else [],
        )

    def _torchrun(self) -> list[str]:
        if self._script.ranks == 1:
            return []
        line = ["-m", "torch.distributed.run", "--standalone"]
        return [*line, "--nproc-per-node", str(self._script.ranks)]

    def _supervised(self, settings: list[str], options: list[str]) -> list[str]:
        line = [sys.executable, "-m", "supervisor.cli.main", "run", "--run-dir", "run", *options]
        for setting in ["report.enabled=false", "restart.backoff_s=0.05", *settings]:
            line += ["--set", setting]
        ranks = self._script.ranks
        return line if ranks == 1 else [*line, "--nproc-per-node", str(ranks)]

    def _lines(self, out: str) -> list[str]:
        """What was printed; nothing of several ranks, whose lines come in any order."""
        lines = out.splitlines() if self._script.ranks == 1 else []
        return [DURATION.sub("#", line) for line in lines if not _BAR.search(line)]

    def _path(self, top: Path) -> list[str]:
        return [str(top / self._script.path)] if self._script.path else []


def _treatments(ended: Ended) -> int:
    """How often the run was treated."""
    acted = [e for e in ended.events if e["kind"] == "action" and e["name"] != "checkpoint"]
    return sum(e.get("outcome") == "applied" for e in acted)


def _here() -> Path:
    """The checkout that this benchmark belongs to, so that its `supervisor` is the one tried."""
    return Path(__file__).resolve().parents[2]


def _files(folder: Path) -> dict[str, bytes]:
    names = (p for p in folder.rglob("*") if p.is_file() and not p.is_symlink())
    found = {str(p.relative_to(folder)): p for p in names}
    return {n: p.read_bytes() for n, p in found.items() if not IGNORED_FILES.search(n)}


def _kill(place: str, plain: Ended, killed: Ended, masked: set[str]) -> Kill:
    resumed = [e for e in killed.events if e["kind"] == "resumed"]
    said = " ".join({e["attempt"]: e["exactness"] for e in resumed}.values()) or "start"
    if any(e["kind"] == "restart" and e["lr_factor"] != 1.0 for e in killed.events):
        said += " treated"
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
    pairs = {n: (plain.files.get(n), other.files.get(n)) for n in files if n not in masked}
    own = _named_anew(plain, other, masked)
    changed = [name for name, pair in pairs.items() if name not in own and not _same_file(*pair)]
    if changed:
        found.append(f"files {', '.join(changed[:3])}")
    if "lines" not in masked and not _same_lines(plain.lines, other.lines, masked):
        found.append("lines")
    return "; ".join(found) or "same"


def _named_anew(plain: Ended, other: Ended, masked: set[str]) -> set[str]:
    """Returns the files of `other` that have the names of plain python's but for what comes from
    the clock or by chance, where plain python itself has another name in each run."""
    moving = Counter(
        _NAMED_ANEW.sub("#", n) for n in masked & plain.files.keys() - other.files.keys()
    )
    found = set()
    for name in sorted(other.files.keys() - plain.files.keys()):
        general = _NAMED_ANEW.sub("#", name)
        if moving[general]:
            moving[general] -= 1
            found.add(name)
    return found


def _same_file(plain: bytes | None, other: bytes | None) -> bool:
    if plain is None or other is None or plain == other:
        return plain == other
    try:
        return same_saved(plain, other)
    except Exception:  # no file of torch, or with classes of the script, which are not here
        return False


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
