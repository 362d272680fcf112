"""The first steps of a script in a copy of its folder: which silent mistakes are told."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from supervisor.analysis.doctor.machine import Check
from supervisor.analysis.trial_run import TrialScript, try_script
from supervisor.errors import SupervisorError
from supervisor.events.step_events import AlertEvent
from supervisor.own_process import WRITES_BELOW

STEPS, LIMIT_S = 128, 300.0
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
    say(f"the first {STEPS} steps, in a copy of this folder")
    run = try_script(
        script,
        folder / "first_steps",
        {"stop_after_steps": str(STEPS), "mistakes.enabled": "true", "mistakes.stop": "false"},
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
    looked_at = f"{LIMIT_S:.0f} s, too few for {STEPS} steps" if run.was_cut else f"{STEPS} steps"
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
