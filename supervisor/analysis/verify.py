"""Proves that a script resumes exactly, or names the first thing that differs.

The script runs three times for a few steps: twice undisturbed, once with a checkpoint, a SIGKILL
(of the last of several ranks) and a resume; with `restart.healing` once more, killed and healed.
Digests of every tensor, generator and schedule, and the script state of what the script's Python
holds, are compared at every boundary, those of the checkpoints among them.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.analysis.trail import (
    FirstDifference,
    Trails,
    advise,
    find_first_difference,
    kind_of,
    private_to,
    read_trails,
    steps_of,
)
from supervisor.analysis.trial_run import TrialRun, TrialScript, trial_folder, try_script
from supervisor.codes import Warned
from supervisor.config import load_resolved_config
from supervisor.errors import SupervisorError, UsageError
from supervisor.events.state_events import Healed, Resumed, WarningEvent
from supervisor.records import Plain
from supervisor.storage.run.run_state import load_run_state
from supervisor.table import table

STEPS = 30
MIN_STEPS = 8
UNDISTURBED, CHECKPOINTED, KILLED = "undisturbed", "again", "broken"
"""Names of the run directories of the two undisturbed runs, and of the one that is killed."""
_REPEATED = 3
"""Steps between the checkpoint and the kill; they are repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification(Plain):
    """The result of `verify`.

    Attributes:
        exact: the resumed run equals the undisturbed one in every digest at every step.
        deterministic: two undisturbed runs are equal; otherwise nothing can be proved.
        steps: how many steps were compared.
        break_at: steps done when the process was killed.
        first_difference: ``{"what", "name", "step"}``, None if `exact`; step counts steps done.
        advice: what to do about it, "" if `exact`.
        resumed_from: steps done at the checkpoint it resumed from; None if it did not resume.
        values: number of digests of an undisturbed run.
        proof: part → one digest over its digests at the last step.
        healed: whether the killed rank came back alone, and all were as undisturbed; None where it
            did not come back alone, or was not to.
        not_healed: why it did not.
    """

    exact: bool
    deterministic: bool
    steps: int
    break_at: int
    first_difference: dict[str, Any] | None = None
    advice: str = ""
    resumed_from: int | None = None
    values: int = 0
    proof: dict[str, str] = field(default_factory=dict)
    healed: bool | None = None
    not_healed: str = ""

    def __str__(self) -> str:
        same = "the same to the last bit"
        outcome = same if self.deterministic else "NOT the same"
        lines = [f"undisturbed, twice {self.steps} steps: {outcome}"]
        if self.deterministic:
            start = "never resumed"
            if self.resumed_from is not None:
                start = f"resumed from step {self.resumed_from}"
            outcome = same if self.exact else "NOT the same"
            lines.append(f"killed after step {self.break_at}, {start}: {outcome}")
        if self.healed is not None or self.not_healed:
            outcome = same if self.healed else self.not_healed or "NOT the same"
            lines.append(f"killed after step {self.break_at}, one rank came back alone: {outcome}")
        if self.exact:
            lines.append(f"proof: {self.values} digests are equal; over each part, at the end:")
            lines.append(table((), self.proof.items(), indent=2))
            return "\n".join(["EXACT", *lines])
        if self.first_difference is not None:
            first = self.first_difference
            lines.append(
                f"first difference: {first['what']}: {first['name']}, after {first['step']} steps"
            )
        return "\n".join(["NOT EXACT", *lines, f"advice: {self.advice}"])


def verify(
    script: TrialScript,
    *,
    steps: int = STEPS,
    break_at: int | None = None,
    keep: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Verification:
    """Runs `script` three times in the current folder and compares.

    Args:
        script: what to run; files that it writes itself are written three times.
        steps: stop after so many steps, if the script makes more.
        break_at: kill the process after so many steps; None is half of `steps`.
        keep: leave the run directories there, instead of in a temporary folder.
        say: called with progress, line by line.

    Raises:
        UsageError: with `steps` or `break_at` there is nothing to compare.
        SupervisorError: the script does not train by itself, or ends before the break.
    """
    break_at = steps // 2 if break_at is None else break_at
    _check(steps, break_at)
    with trial_folder(keep) as folder:
        say("1 of 3: undisturbed")
        first = _undisturbed(script, folder / UNDISTURBED, steps, 10 * steps)
        last = steps_of(first)
        if last <= break_at:
            raise SupervisorError(
                f"{script}: ends after {last + 1} steps, before the break at {break_at}: "
                f"give --break-at below {last}"
            )
        say("2 of 3: undisturbed again, with checkpoints")
        second = _undisturbed(script, folder / CHECKPOINTED, steps, break_at - _REPEATED)
        ignored = private_to(first, second)
        difference = find_first_difference(first, second, ignored)
        if difference is not None:
            return _not_deterministic(difference, first, break_at)
        say(f"3 of 3: killed after step {break_at}, and resumed")
        broken = _broken(script, folder / KILLED, steps, break_at, rank=max(first))
        result = _judge(first, broken, ignored, break_at)
        if len(first) == 1 or not load_resolved_config(broken.rundir.config_yaml).restart.heals:
            return result
        say(f"4 of 4: a rank killed after step {break_at}, and back alone")
        broken = _broken(script, folder / "healed", steps, break_at, rank=max(first), heals=True)
        return judge_healed(result, first, broken, ignored)


def _check(steps: int, break_at: int) -> None:
    if steps < MIN_STEPS:
        raise UsageError(f"verify: --steps {steps}: at least {MIN_STEPS}")
    if not _REPEATED + 2 <= break_at < steps:
        raise UsageError(
            f"verify: --break-at {break_at}: give a step from {_REPEATED + 2} to {steps - 1}"
        )


def _settings(steps: int, saved_at: int) -> dict[str, str]:
    return {
        "trail": "true",
        "stop_after_steps": str(steps),
        "checkpoint.every_steps": str(saved_at),
        "checkpoint.background": "false",
        "snapshot.enabled": "false",
        "parting.enabled": "false",  # several ranks would go on behind the checkpoint
        "policy.observe_only": "true",  # a treatment would be a difference of our making
    }


def _undisturbed(script: TrialScript, run_dir: Path, steps: int, saved_at: int) -> Trails:
    run = try_script(script, run_dir, _settings(steps, saved_at))
    run.must_have_trained(script)
    return read_trails(run.rundir, load_run_state(run.rundir).world_size)


def _broken(
    script: TrialScript,
    run_dir: Path,
    steps: int,
    break_at: int,
    *,
    rank: int,
    heals: bool = False,
) -> TrialRun:
    settings = _settings(steps, 10 * steps if heals else break_at - _REPEATED)
    if heals:
        settings |= {"parting.enabled": "true", "parting.every_steps": str(_REPEATED)}
    settings["faults"] = f"[{{kind: sigkill, step: {break_at - 1}, rank: {rank}}}]"
    return try_script(script, run_dir, settings)


def _not_deterministic(difference: FirstDifference, first: Trails, break_at: int) -> Verification:
    return Verification(
        exact=False,
        deterministic=False,
        steps=steps_of(first),
        break_at=break_at,
        first_difference=_describe(difference, by_itself=True),
        advice=advise(difference, by_itself=True),
    )


def _judge(
    first: Trails, run: TrialRun, ignored: Mapping[int, set[tuple[str, str]]], break_at: int
) -> Verification:
    difference = find_first_difference(first, read_trails(run.rundir, len(first)), ignored)
    resumed = run.events(Resumed)
    if difference is None and not (resumed and run.returncode == 0):
        difference = FirstDifference(
            what="steps", name=f"exit code {run.returncode}", step=break_at
        )
    found = Verification(
        exact=difference is None,
        deterministic=True,
        steps=steps_of(first),
        break_at=break_at,
        resumed_from=resumed[-1].from_step if resumed else None,
        values=_count(first, ignored),
        proof=_proof(first, ignored),
    )
    if difference is None:
        return found
    reason = resumed[-1].reason if resumed else "there was none"
    return dataclasses.replace(
        found,
        first_difference=_describe(difference, by_itself=False),
        advice=f"{advise(difference, by_itself=False)} (the resume itself says: {reason})",
    )


def judge_healed(
    result: Verification,
    first: Trails,
    run: TrialRun,
    ignored: Mapping[int, set[tuple[str, str]]],
) -> Verification:
    """Returns the result with what healing did; what is not as undisturbed is not exact."""
    if not run.events(Healed):
        said = [e.message for e in run.events(WarningEvent) if e.found is Warned.NOT_HEALED]
        why = said[-1] if said else "no rank came back alone"
        return dataclasses.replace(result, not_healed=why)
    difference = find_first_difference(first, read_trails(run.rundir, len(first)), ignored)
    if difference is None and run.returncode != 0:
        name = f"exit code {run.returncode}"
        difference = FirstDifference(what="steps", name=name, step=result.break_at)
    if difference is None:
        return dataclasses.replace(result, healed=True)
    return dataclasses.replace(
        result,
        exact=False,
        healed=False,
        first_difference=result.first_difference or _describe(difference, by_itself=False),
        advice=result.advice or advise(difference, by_itself=False),
    )


def _describe(difference: FirstDifference, *, by_itself: bool) -> dict[str, Any]:
    what = kind_of(difference, by_itself=by_itself)
    name = difference.name if what == difference.what else f"{difference.what} {difference.name}"
    return {"what": what, "name": name, "step": difference.step}


def _count(trails: Trails, ignored: Mapping[int, set[tuple[str, str]]]) -> int:
    return sum(
        (part, name) not in ignored[rank]
        for rank, marks in trails.items()
        for mark in marks.values()
        for part, names in mark.parts.items()
        for name in names
    )


def _proof(trails: Trails, ignored: Mapping[int, set[tuple[str, str]]]) -> dict[str, str]:
    texts = dict[str, str]()
    for rank, marks in trails.items():
        for part, names in marks[max(marks)].parts.items():
            told = [f"{k} {v}" for k, v in names.items() if (part, k) not in ignored[rank]]
            texts[part] = "\n".join([text for text in (texts.get(part), *told) if text])
    return {
        part: hashlib.sha256(text.encode()).hexdigest()[:32] for part, text in texts.items() if text
    }
