"""Trainings of known cause run under the supervisor, each then explained without being told.

    python -m benchmarks.diagnosis [--only WORDS] [--folder DIR] [--json FILE]
    python -m benchmarks.diagnosis --table FILE

A diagnosis is right if `supervisor explain` names the true root cause, and narrow if it also names
the guilty sample, module and operation as far as there are any. The second form prints the table
of a run whose JSON was kept, also of one that is still going on.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.sick_trainings import SICK_TRAININGS, SickTraining
from tests.scenarios.runs import supervised, supervisor_command

SETTINGS = (
    "checkpoint.every_steps=20",
    "stop_after_steps=90",
    "restart.crash_limit=1",
)
UNTREATED = ("--policy", "observe_only")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was found in one training, beside the truth.

    Attributes:
        narrowed: None where there is neither sample nor module to name.
        run_s, explain_s: by the wall clock, processes started included.
        explain_cpu_s: processor time of explain and its replays.
        explanation: what ``explain --json`` printed; its error if it printed none.
    """

    name: str
    cause: str
    found: str
    right: bool
    narrowed: bool | None
    run_s: float
    explain_s: float
    explain_cpu_s: float
    explanation: dict[str, Any]


def diagnose_one(training: SickTraining, folder: Path) -> Verdict:
    """Runs and explains one training."""
    began = time.monotonic()
    ended = supervised(
        folder, training.text, (), settings=SETTINGS, options=UNTREATED, faults=training.faults
    )
    ran, cpu_s = time.monotonic(), _children_cpu_s()
    line = [*supervisor_command(), "explain", "--json", str(ended.run_dir)]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True)
    try:
        explanation = json.loads(done.stdout)
    except ValueError:
        explanation = {"root_cause": "none", "summary": done.stderr.strip()[-300:]}
    return Verdict(
        name=training.name,
        cause=training.cause,
        found=explanation["root_cause"],
        right=explanation["root_cause"] == training.cause,
        narrowed=is_narrow(training, explanation),
        run_s=round(ran - began, 1),
        explain_s=round(time.monotonic() - ran, 1),
        explain_cpu_s=round(_children_cpu_s() - cpu_s, 1),
        explanation=explanation,
    )


def is_narrow(training: SickTraining, explanation: dict[str, Any]) -> bool | None:
    """Whether what is to blame among sample, module and operation is named; None if none is."""
    wanted = [
        (training.sample, explanation.get("sample"), training.sample is not None),
        (training.modules, explanation.get("module"), bool(training.modules)),
        (training.operations, explanation.get("operation"), bool(training.operations)),
    ]
    if not any(has for _, _, has in wanted):
        return None
    return all(
        found in truth if isinstance(truth, tuple) else found == truth
        for truth, found, has in wanted
        if has
    )


def table(verdicts: Sequence[Verdict]) -> str:
    """Returns the figures per cause, in Markdown, and every miss by name."""
    lines = [
        "| true cause | trainings | cause right | sample, module, operation right | CPU seconds |",
        "| --- | --- | --- | --- | --- |",
    ]
    for cause in dict.fromkeys(verdict.cause for verdict in verdicts):
        lines.append(_row(f"`{cause}`", [v for v in verdicts if v.cause == cause]))
    lines.append(_row("all", verdicts))
    for verdict in verdicts:
        if not verdict.right:
            lines.append(f"\nmissed: {verdict.name}: {verdict.cause}, found {verdict.found}")
        elif verdict.narrowed is False:
            seen = [verdict.explanation.get(name) for name in ("sample", "module", "operation")]
            lines.append(f"\nnot narrowed: {verdict.name}: found {seen}")
    return "\n".join(lines)


def _row(name: str, verdicts: Sequence[Verdict]) -> str:
    right = sum(verdict.right for verdict in verdicts)
    narrowed = [verdict.narrowed for verdict in verdicts if verdict.narrowed is not None]
    narrow = f"{sum(narrowed)} of {len(narrowed)}" if narrowed else "–"
    spent = sorted(verdict.explain_cpu_s for verdict in verdicts)
    seconds = f"{spent[0]:.0f} ... {spent[-1]:.0f}, median {spent[len(spent) // 2]:.0f}"
    return f"| {name} | {len(verdicts)} | {right} | {narrow} | {seconds} |"


def _children_cpu_s() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="only trainings whose name has these words")
    parser.add_argument("--folder", type=Path, help="keep the runs here")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path, help="print the table of this JSON, run nothing")
    options = parser.parse_args()
    if options.table:
        print(table([Verdict(**kept) for kept in json.loads(options.table.read_text())]))
        return 0
    chosen = [training for training in SICK_TRAININGS if options.only in training.name]
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        width = max(len(training.name) for training in chosen)
        for number, training in enumerate(chosen):
            verdict = diagnose_one(training, folder / str(number))
            verdicts.append(verdict)
            narrow = {None: "-", True: "yes", False: "no"}[verdict.narrowed]
            print(
                f"{verdict.name:<{width}}  {verdict.cause:<15}  {verdict.found:<15}  "
                f"{'right' if verdict.right else 'WRONG':<5}  {narrow:<3}  "
                f"{verdict.explain_s:5.0f} s  {verdict.explain_cpu_s:5.0f} s CPU",
                flush=True,
            )
            if options.json:
                options.json.write_text(json.dumps([asdict(v) for v in verdicts], indent=2))
    print(table(verdicts))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
