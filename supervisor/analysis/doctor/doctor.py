"""The checklist before a long training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from supervisor.analysis.doctor.first_steps import check_first_steps
from supervisor.analysis.doctor.machine import Check, check_machine
from supervisor.analysis.trial_run import TrialRun, TrialScript, trial_folder
from supervisor.config import load_resolved_config
from supervisor.errors import SupervisorError
from supervisor.events.state_events import CheckpointSaved, Resumed

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
