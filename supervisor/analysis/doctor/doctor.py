"""The checklist before a long training."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from supervisor.analysis.doctor.machine import Check, check_machine
from supervisor.analysis.trial_run import TrialRun, TrialScript, trial_folder, try_script
from supervisor.config import load_resolved_config
from supervisor.errors import SupervisorError
from supervisor.events.state_events import CheckpointSaved, Resumed
from supervisor.events.step_events import AlertEvent
from supervisor.own_process import WRITES_BELOW

FIRST, LIMIT_S = 128, 300.0
"""Some kinds need a hundred updates; a script with slow steps makes as many as it can in this time.
"""
LARGE = 16 << 20
"""Bytes of a file that is linked, not copied."""
MOST_FILES = 20_000
_LINKED = frozenset({".git", ".venv", "venv", "node_modules", "__pycache__", "runs", "wandb"})


def check_first_steps(script: TrialScript, folder: Path, say: Callable[[str], None]) -> list[Check]:
    """Runs the first steps in a copy of the current folder, below `folder`."""
    copied, refused = folder / "copy", folder / "refused.txt"
    copy_folder(Path.cwd(), copied, leave_out=folder)
    say(f"the first {FIRST} steps, in a copy of this folder")
    run = try_script(
        script,
        folder / "first_steps",
        {"stop_after_steps": str(FIRST), "mistakes.enabled": "true", "mistakes.stop": "false"},
        environment={WRITES_BELOW: f"{copied}{os.pathsep}{refused}"},
        working_folder=copied,
        ends_after_s=LIMIT_S,
    )
    checks = []
    outside = sorted(set(refused.read_text().splitlines())) if refused.exists() else []
    if outside:
        more = f" and {len(outside) - 4} more" if len(outside) > 4 else ""
        detail = f"outside of this folder, refused in the copy: {', '.join(outside[:4])}{more}"
        checks.append(Check(name="writes", ok=False, detail=detail))
    try:
        run.must_have_trained(script)
    except SupervisorError:
        return checks  # the runs in the folder itself say why
    told = [event for event in run.events(AlertEvent) if event.category == "mistake"]
    facts = "; ".join(f"{one.fact}. Mend: {one.metadata.get('mend')}" for one in told)
    looked_at = f"{LIMIT_S:.0f} s, too few for {FIRST} steps" if run.was_cut else f"{FIRST} steps"
    detail = facts or f"none in the first {looked_at}"
    return [Check(name="silent mistakes", ok=not told, detail=detail), *checks]


def copy_folder(source: Path, target: Path, *, leave_out: Path) -> None:
    """Copies a folder; large files, folders of tools and what comes after `MOST_FILES` are links,
    through which a guarded process cannot write."""
    count = 0
    for root, folders, names in os.walk(source):
        here = target / Path(root).relative_to(source)
        here.mkdir(parents=True, exist_ok=True)
        for name in list(folders):
            path = Path(root) / name
            if path == leave_out or path in leave_out.parents:
                folders.remove(name)
            elif name in _LINKED or path.is_symlink() or count > MOST_FILES:
                folders.remove(name)
                (here / name).symlink_to(path.resolve())
        for name in names:
            path = Path(root) / name
            count += 1
            if not path.is_file():
                continue
            if path.stat().st_size > LARGE or count > MOST_FILES:
                (here / name).symlink_to(path.resolve())
            else:
                shutil.copy2(path, here / name)


STEPS = 20


def doctor(
    script: TrialScript | None = None,
    *,
    steps: int = STEPS,
    keep: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[Check]:
    """Returns the checks of the machine and, with a script, of short runs of it.

    Args:
        script: what to run, once in a copy of the current folder and three times in it; None
            checks the machine alone.
        steps: of each run.
        keep: leave the run directories there; also the disk whose speed is measured.
        say: called with progress, line by line.

    Raises:
        SupervisorError: `keep` cannot be used.
    """
    with trial_folder(keep) as folder:
        checks = check_machine(Path.cwd(), folder)
        if script is not None:
            checks += check_first_steps(script, folder, say)
            checks += _check_script(script, steps, folder, say)
    return checks


def _check_script(
    script: TrialScript, steps: int, folder: Path, say: Callable[[str], None]
) -> list[Check]:
    from supervisor.analysis.doctor import script as checks
    from supervisor.analysis.trail import read_trail
    from supervisor.analysis.verify import CHECKPOINTED, KILLED, UNDISTURBED, verify
    from supervisor.storage.run.rundir import RunDirectory
    from supervisor.storage.steps.flight_reader import read_steps

    runs = folder / "runs"
    try:
        found = verify(script, steps=steps, keep=runs, say=say)
        undisturbed = RunDirectory(runs / UNDISTURBED)
        marks, rows = read_trail(undisturbed), read_steps(undisturbed)
    except SupervisorError as error:
        return [Check(name="training", ok=False, detail=str(error))]
    facts, config = marks[-1].facts, undisturbed.config_yaml
    again, killed = (
        TrialRun(rundir=RunDirectory(runs / name), returncode=0, seconds=0.0, output="")
        for name in (CHECKPOINTED, KILLED)
    )
    return [
        checks.check_losses(rows),
        checks.check_clipping(rows, facts.get("clips_at")),
        checks.check_precision(facts),
        checks.check_loader(marks, rows),
        checks.check_signals(facts),
        checks.check_checkpoints(again.events(CheckpointSaved), Path.cwd()),
        checks.check_memory(again.events(CheckpointSaved), rows, load_resolved_config(config)),
        checks.check_exactness(found),
        checks.check_replay(killed.events(Resumed)),
    ]
