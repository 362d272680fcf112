"""Injects faults into the user's own training and says what survives, at what cost.

Each fault gets a short run of its own, after an undisturbed one as the reference; it strikes the
last of several ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.analysis.outcome import FaultOutcome, ReferenceRun, judge, read_reference
from supervisor.analysis.trial_run import TrialScript, trial_folder, try_script
from supervisor.config_check import did_you_mean
from supervisor.errors import SupervisorError, UsageError
from supervisor.ranks import FIRST_RANK
from supervisor.records import plain
from supervisor.storage.run.run_state import load_run_state


@dataclass(frozen=True, slots=True)
class DrillFault:
    """A fault of the menu.

    Attributes:
        name: as the user calls it.
        kind: as the config key ``faults`` calls it, if otherwise.
        about: what happens, in a few words.
        resume: the run ends, and is continued with `supervisor resume`.
        hangs: the step takes long, so the watchdog gets a short time limit.
        factor: duration of the fault, as a multiple of the watchdog's limit.
        settings: further config keys.
        of_ranks: only of several ranks.
    """

    name: str
    about: str
    kind: str = ""
    resume: bool = False
    hangs: bool = False
    factor: float | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    of_ranks: bool = False

    def settings_at(
        self, step: int, hang_timeout_s: float, rank: int = FIRST_RANK
    ) -> dict[str, str]:
        """Returns the config keys of a run that this fault strikes at `step`, on one rank."""
        factor = "" if self.factor is None else f", factor: {self.factor * hang_timeout_s:.3f}"
        fault = f"kind: {self.kind or self.name}, step: {step}{factor}, rank: {rank}"
        chosen = {"faults": f"[{{{fault}}}]", **self.settings}
        if self.hangs:
            chosen["watchdog.hang_timeout_s"] = f"{hang_timeout_s:.3f}"
            chosen["watchdog.stack_interval_s"] = "0.5"
            chosen["watchdog.grace_s"] = "2"
        return chosen


MENU: Mapping[str, DrillFault] = {
    fault.name: fault
    for fault in (
        DrillFault("sigkill", "the process is killed"),
        DrillFault(
            "kill_rank",
            "a rank is killed, and comes back alone",
            kind="sigkill",
            settings={"restart.healing": "on", "parting.every_steps": "2"},
            of_ranks=True,
        ),
        DrillFault(
            "sigterm",
            "the supervisor is asked to end; the run is resumed",
            kind="sigterm_parent",
            resume=True,
        ),
        DrillFault("exception", "the training loop raises"),
        DrillFault("out_of_memory", "the device has no memory left"),
        DrillFault("hang", "a step never ends", hangs=True),
        DrillFault(
            "slow_loader", "a batch comes late, but comes", kind="slow", hangs=True, factor=0.5
        ),
        DrillFault("nan_data", "a batch holds NaN"),
        DrillFault("nan_loss", "the loss is NaN"),
        DrillFault("nan_gradient", "a gradient holds NaN"),
        DrillFault("loss_spike", "a loss ten thousand times too high"),
        DrillFault("weight", "a weight in memory becomes a million"),
        DrillFault("second_moment", "the optimizer's second moments shrink a billion times"),
        DrillFault("disk_full", "no file can grow for 20 steps"),
        DrillFault(
            "damaged_checkpoint",
            "the newest checkpoint loses a bit, then the process is killed",
            settings={"checkpoint.background": "false"},
        ),
    )
}


def choose(names: Sequence[str]) -> list[DrillFault]:
    """Returns the faults of these names; all faults if none is named.

    Raises:
        UsageError: there is no such fault; names the nearest.
    """
    for name in names:
        if name not in MENU:
            hint = did_you_mean(name, MENU) or f"; one of {', '.join(MENU)}"
            raise UsageError(f"drill: --faults {name}: no such fault{hint}")
    return [MENU[name] for name in names] if names else list(MENU.values())


STEPS = 100
MIN_STEPS = 40
"""With fewer steps the detectors cannot learn what is calm, or the run cannot recover."""
_STRIKE_AT = 0.6
_CHECKPOINTS = 10
_MIN_HANG_S = 5.0
_INTERRUPTED = 75  # with a checkpoint, to be resumed


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillResult:
    """The result of `drill`; `steps` of every run, `strike_step` of every fault."""

    faults: tuple[FaultOutcome, ...]
    steps: int
    strike_step: int

    @property
    def all_survived(self) -> bool:
        return all(fault.survived for fault in self.faults)

    def to_dict(self) -> dict[str, Any]:
        return {**plain(self), "all_survived": self.all_survived}


def drill(
    script: TrialScript,
    *,
    faults: Sequence[str] = (),
    steps: int = STEPS,
    keep: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> DrillResult:
    """Runs `script` once undisturbed and once for each fault, in the current folder.

    Args:
        script: what to run; files that it writes itself are written by every run.
        faults: names of the menu (`drill_menu.MENU`); none for all.
        steps: stop after so many steps, if the script makes more.
        keep: leave the run directories there, instead of in a temporary folder.
        say: called with progress, line by line.

    Raises:
        UsageError: an unknown fault, or too few steps.
        SupervisorError: the script does not train by itself.
    """
    chosen = choose(faults)
    if all(fault.of_ranks for fault in chosen) and not any(map(_is_nproc, script.options)):
        raise UsageError(f"drill: --faults {chosen[0].name}: only with --nproc-per-node")
    if steps < MIN_STEPS:
        raise UsageError(f"drill: --steps {steps}: at least {MIN_STEPS}")
    with trial_folder(keep) as folder:
        say("the undisturbed run, as the reference")
        run = try_script(script, folder / "reference", _settings(steps))
        run.must_have_trained(script)
        reference = read_reference(run)
        made = len(reference.losses)
        if made < MIN_STEPS:
            raise SupervisorError(
                f"{script}: makes {made} steps: at least {MIN_STEPS} are needed: give it more data "
                "or epochs"
            )
        say(_describe(reference))
        strike = int(_STRIKE_AT * made)
        rank = load_run_state(run.rundir).world_size - 1
        chosen = [fault for fault in chosen if rank or not fault.of_ranks]
        outcomes = []
        for number, fault in enumerate(chosen, 1):
            say(f"{number} of {len(chosen)}: {fault.name}: {fault.about}")
            outcomes.append(_strike(script, fault, folder, reference, steps, strike, rank))
            say(_result(outcomes[-1]))
    return DrillResult(faults=tuple(outcomes), steps=made, strike_step=strike)


def _is_nproc(option: str) -> bool:
    return option.startswith("--nproc-per-node=")


def _settings(steps: int) -> dict[str, str]:
    return {
        "stop_after_steps": str(steps),
        "checkpoint.every_steps": str(max(2, steps // _CHECKPOINTS)),
        "checkpoint.stable_after_steps": str(max(2, steps // 5)),
        # Otherwise a short run of short steps could afford hardly any snapshots.
        "checkpoint.max_overhead": "0.2",
    }


def _strike(
    script: TrialScript,
    fault: DrillFault,
    folder: Path,
    reference: ReferenceRun,
    steps: int,
    strike: int,
    rank: int,
) -> FaultOutcome:
    hang_timeout_s = max(_MIN_HANG_S, 10.0 * reference.slowest_step_s)
    settings = _settings(steps) | fault.settings_at(strike, hang_timeout_s, rank)
    run = try_script(script, folder / fault.name, settings)
    seconds = run.seconds
    if fault.resume and run.returncode == _INTERRUPTED:
        run = try_script(script, folder / fault.name, {"faults": "[]"}, resume=True)
        seconds += run.seconds
    return judge(fault.name, run, reference, seconds)


def _describe(reference: ReferenceRun) -> str:
    loss = reference.final_loss
    seen = "no loss was seen" if math.isnan(loss) else f"final loss {loss:.6g}"
    return f"  {len(reference.losses)} steps in {reference.seconds:.1f} s, {seen}"


def _result(outcome: FaultOutcome) -> str:
    word = "survived" if outcome.survived else "NOT SURVIVED"
    return f"  {word}: {outcome.detail}; {outcome.seconds_lost:.1f} s lost"
