"""One generated program: plain, healthy under the supervisor, killed; and what was the same."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.generated.comparison import different_files, first_difference, same_lines
from benchmarks.generated.program import Recipe, text
from benchmarks.generated.warm_client import Left, WarmClient

LEAST_MOMENTS = 12
"""A program with fewer has not trained."""


@dataclass(frozen=True)
class Verdict:
    """What a trial showed.

    Attributes:
        healthy: "" if all was as in plain python, otherwise what was not.
        resumed: `exactness` of each resume, in order; "start" for an attempt that began anew.
        killed: "" if all was as in plain python, otherwise what was not.
        kills: how many attempts were killed.
        reason: of the first resume that was not exact.
        broken: why the program itself does not run.
        treated: updates left out on purpose, after two kills at one step.
    """

    healthy: str
    resumed: tuple[str, ...]
    killed: str
    kills: int
    reason: str = ""
    broken: str = ""
    treated: int = 0

    @property
    def is_false_exact(self) -> bool:
        """Everything was said to be exact, and it was not; what was treated is meant to differ."""
        claimed = set(self.resumed) - {"start"}
        return bool(self.killed) and claimed == {"exact"} and not self.treated

    @property
    def kind(self) -> str:
        """One word for tables."""
        if self.broken:
            return "broken"
        if not self.kills:
            return "not struck"
        if self.treated:
            return "treated"
        if self.is_false_exact:
            return "false exact"
        if "approximate" in self.resumed:
            return "approximate, different" if self.killed else "approximate, equal"
        if not self.resumed or "exact" not in self.resumed:
            return "from the start, different" if self.killed else "from the start"
        return "different" if self.killed else "exact"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def try_recipe(
    recipe: Recipe, client: WarmClient, folder: Path, *, healthy: bool = True
) -> Verdict:
    """Runs a program in folders of its own below `folder`, which is emptied first."""
    return try_script(
        text(recipe),
        client,
        folder,
        kills=recipe.kills,
        fault=recipe.fault,
        every=recipe.every,
        given=recipe.given,
        healthy=healthy,
    )


def try_script(
    script: str,
    client: WarmClient,
    folder: Path,
    *,
    kills: Sequence[float],
    fault: str = "",
    every: int = 4,
    given: str = "file",
    healthy: bool = True,
) -> Verdict:
    """The same for a script that raises the audit event "moment", with the words of `Recipe`."""
    shutil.rmtree(folder, ignore_errors=True)
    count = folder / "moments.json"
    with _folder(folder, "plain", script) as work:
        first = client.plain(work, "script.py", count_to=count, given=given)
    if first.returncode != 0:
        return Verdict("", (), "", 0, broken=first.stderr[-500:])
    moments = json.loads(count.read_text())
    if len(moments) < LEAST_MOMENTS:
        return Verdict("", (), "", 0, broken="it does not train")
    settings = [f"checkpoint.every_steps={every}"]
    watched = ""
    if healthy:
        with _folder(folder, "healthy", script) as work:
            left = client.supervised(work, "script.py", settings=settings, given=given)
        watched = _difference(folder, "healthy", first, left, killed=False)
        told = [e["message"] for e in _events(folder, "healthy") if e["kind"] == "warning"]
        watched = "; ".join([watched, *told] if watched else told)
    numbers = [int(share * len(moments)) for share in kills]
    if fault:
        step = int(kills[0] * sum(m == "update" for m in moments))
        word = f"faults=[{{kind: sigkill, step: {step}, moment: {fault}}}]"
        settings, numbers = [*settings, word], []
    with _folder(folder, "killed", script) as work:
        left = client.supervised(work, "script.py", settings=settings, kills=numbers, given=given)
    return _verdict(folder, watched, _difference(folder, "killed", first, left, killed=True))


@contextlib.contextmanager
def _folder(folder: Path, name: str, script: str) -> Iterator[Path]:
    """A folder of the same name for each run: programs know where they are."""
    work = folder / "work"
    work.mkdir(parents=True)
    (work / "script.py").write_text(script)
    try:
        yield work
    finally:
        work.rename(folder / name)


def _verdict(folder: Path, healthy: str, killed: str) -> Verdict:
    events = _events(folder, "killed")
    resumed = [e for e in events if e["kind"] == "resumed"]
    attempts = [e["attempt"] for e in events if e["kind"] == "attempt_started"]
    said = {e["attempt"]: e["exactness"] for e in resumed}
    reasons = [str(e["reason"]) for e in resumed if e["exactness"] != "exact"]
    exits = [e for e in events if e["kind"] == "worker_exited"]
    return Verdict(
        healthy=healthy,
        resumed=tuple(said.get(number, "start") for number in attempts[1:]),
        killed=killed,
        kills=sum(e["cause"] == "killed" for e in exits),
        reason=reasons[0] if reasons else "",
        treated=sum(e["kind"] == "update_skipped" for e in events),
    )


def _events(folder: Path, name: str) -> list[dict[str, Any]]:
    lines = (folder / name / "run" / "events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def _difference(folder: Path, name: str, plain: Left, other: Left, *, killed: bool) -> str:
    """Returns what is not as in plain python; "" if nothing."""
    found = []
    if other.returncode != 0:
        found.append(f"exit {other.returncode}: {other.stderr[-300:]}")
    files = different_files(folder / "plain", folder / name)
    found += [first_difference(folder / "plain", folder / name, file) for file in files[:3]]
    is_same = same_lines(plain.stdout, other.stdout) if killed else plain.stdout == other.stdout
    if not is_same:
        found.append("printed lines")
    return "; ".join(found)
