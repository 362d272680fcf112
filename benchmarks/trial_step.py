"""Whether a trial step tells a damaged state from changed data or another objective.

    python -m benchmarks.trial_step [--quick] [--json FILE]

Five small trainings (perceptron, batch normalisation, convolutions, GRU, regression), each with
four ways in which the script itself spoils its state, and four in which labels, objective,
augmentation or curriculum change on purpose. Those of a task run one after another in one script,
supervised and as plain Python. Printed is, of each case, what was done, how many trials were made,
and the loss on held-out batches; then whether untreated trainings end, to the bit, with the state
of plain Python. Six minutes on two cores; `--quick` is one task.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import trial_step_tasks
from supervisor.codes import ActionOutcome, Found
from supervisor.events.event import of_kind
from supervisor.events.state_events import StateFound
from supervisor.events.step_events import ActionEvent
from supervisor.ladder.rungs import FREE
from supervisor.ladder.trial_steps import TRIAL_STEP
from supervisor.storage.journal.events import read_journal
from supervisor.storage.run.rundir import RunDirectory

SCRIPT = Path(trial_step_tasks.__file__)
WITHIN = 1.02
"""Of the loss of the undisturbed training: rolled back in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one case.

    Attributes:
        treatments: that were applied, but for saving and trials; ``trials`` counts these.
        alone: loss on held-out batches without supervision, by the undisturbed training's.
        ratio: the same with it; where something was changed, by that of the same without it.
        is_same: it ends with the state of plain Python, to the bit; None where it was treated.
    """

    task: str
    case: str
    kind: str
    trials: int
    treatments: tuple[str, ...]
    alone: float
    ratio: float
    is_same: bool | None


def outcomes_of(task: str, folder: Path) -> list[Outcome]:
    """Runs all cases of a task: supervised, and as plain Python."""
    folder.mkdir(parents=True)
    line = [sys.executable, "-m", "supervisor.cli.main", "run", "--run-dir", "run"]
    for setting in ("report.enabled=false", "capture.enabled=false", "policy.case_library=false"):
        line += ["--set", setting]
    done = subprocess.run([*line, str(SCRIPT), task, "beside.json"], cwd=folder, check=False)
    if done.returncode:
        raise RuntimeError(f"{task}: the supervised run ended with {done.returncode}")
    alone = [sys.executable, str(SCRIPT), task, "alone.json"]
    subprocess.run(alone, cwd=folder, check=True, capture_output=True)
    beside, plain = (json.loads((folder / f"{n}.json").read_text()) for n in ("beside", "alone"))
    journal = read_journal(RunDirectory(folder / "run").journal)
    actions = [
        (event.name, event.step or 0)
        for event in of_kind(journal, ActionEvent)
        if event.outcome is ActionOutcome.APPLIED and event.name not in FREE
    ]
    actions += [
        (TRIAL_STEP, event.step or 0)
        for event in of_kind(journal, StateFound)
        if event.found in (Found.ANOTHER_LEVEL, Found.TRIAL_STEP)
    ]
    undisturbed = plain[-1]["loss"]
    return [
        _outcome(task, number, case, plain[number], undisturbed, actions)
        for number, case in enumerate(beside)
    ]


def _outcome(
    task: str,
    number: int,
    case: dict[str, Any],
    plain: dict[str, Any],
    undisturbed: float,
    actions: list[tuple[str, int]],
) -> Outcome:
    first = number * trial_step_tasks.STEPS
    made = [(name, step - first) for name, step in actions]
    made = [(name, step) for name, step in made if 0 <= step < trial_step_tasks.STEPS]
    treatments = tuple(name for name, _ in made if name != TRIAL_STEP)
    alone = plain["loss"]
    return Outcome(
        task=task,
        case=case["case"],
        kind=case["kind"],
        trials=len(made) - len(treatments),
        treatments=treatments,
        alone=alone / undisturbed,
        ratio=case["loss"] / (alone if case["kind"] == "changed" else undisturbed),
        is_same=None if treatments else case["state"] == plain["state"],
    )


def told(outcomes: list[Outcome]) -> str:
    """The table, and the sums."""
    lines = [f"{'task':12} {'case':34} {'alone':>7} {'loss':>7} {'trials':>6}  treatments"]
    for one in outcomes:
        what = ", ".join(one.treatments) or "-"
        figures = f"{one.alone:7.3f} {one.ratio:7.3f} {one.trials:6}"
        lines.append(f"{one.task:12} {one.case:34} {figures}  {what}")
    state = [one for one in outcomes if one.kind == "state"]
    changed = [one for one in outcomes if one.kind == "changed"]
    proved = [one for one in outcomes if one.is_same is not None]
    healthy = [one for one in outcomes if one.kind == "undisturbed"]
    healed = sum(one.ratio <= WITHIN for one in state)
    treated = sum(bool(one.treatments) for one in changed)
    touched = sum(bool(one.treatments) or one.trials > 0 for one in healthy)
    same = sum(bool(one.is_same) for one in proved)
    most = max((one.trials for one in changed), default=0)
    lines += [
        "",
        f"state spoiled: {healed} of {len(state)} end within {WITHIN - 1:.0%} of undisturbed",
        f"changed on purpose: {treated} of {len(changed)} treated, at most {most} trials in one",
        f"undisturbed: {touched} of {len(healthy)} tried or treated",
        f"untreated, and the same to the bit as plain Python: {same} of {len(proved)}",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one task")
    parser.add_argument("--json", type=Path, help="write all outcomes there, too")
    given = parser.parse_args()
    tasks = [*trial_step_tasks.TASKS][: 1 if given.quick else None]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda task: outcomes_of(task, Path(folder) / task), tasks)
        outcomes = [outcome for of_task in found for outcome in of_task]
    print(told(outcomes))
    if given.json:
        given.json.write_text(json.dumps([asdict(one) for one in outcomes], indent=1))


if __name__ == "__main__":
    main()
