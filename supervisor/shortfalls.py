"""What of a run cannot be relied on, whatever its end is called. Pure.

The terminal's last lines, the report and `watch` say it; a run with a shortfall is never green.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from supervisor.codes import Found, Warned
from supervisor.events.event import JournalEvent, of_kind
from supervisor.events.state_events import CheckpointSaved, StateFound, WarningEvent
from supervisor.events.step_events import AlertEvent, RiskEvent

Floats = npt.NDArray[np.float64]

HIGH_LOSS = "high_loss"
SPREADS, END_SPREADS = 8.0, 3.0
"""So many spreads of the losses above the best level is far above it. Of 118 runs of 59 kinds of
`benchmarks.healthy` that records alone can tell two stay so far up (``opponents``: a live run sees
why), of 17 healthy public logs none; logs that diverged and went on end 26 and 31 above."""
WINDOW, SHARE = 20, 20
"""A level is the median of so many losses, or of this part of all: one step says nothing."""
LOST, EXPLODED = 0.5, 3.0
"""Share of what the training had gained, or multiple of the best level: noise after a long fall may
be large beside the last spread, and costs little."""
BACK = 0.25
"""Share of what had been gained before trouble that may be missing after it was overcome: the rate
is lower for a while."""
INSIDE = 0.05
"""Share of the best level's losses that count as above it."""
AT_ONCE, RISEN = 0.2, 0.7
"""In so large a part of the run the losses have risen so far: a penalty that is raised again and
again, or a new term's weight, takes longer (70 % of the run for ``growing_penalty``); the public
logs that diverged took 3 and 10 %."""
SILENT = 0.5
"""An alarm is over when the risk is below this part of its line, see `backtest`."""
CHANGES = frozenset(
    {
        *(Found.ANNOUNCED, Found.ANOTHER_TRAINING, Found.ANOTHER_LEVEL, Found.OTHER_DATA),
        *(Found.RATE_TEST, Found.SCRIPT_CHANGE),
    }
)
"""What makes the losses before it no measure for those after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """Something that cannot be relied on.

    Attributes:
        key: short name, see docs/report.md.
        is_bad: the result itself is in doubt (red); else what protects it (amber).
        title: in a few words.
        sentence: what happened, and what cannot be relied on therefore.
        advice: what to do.
        step: at which it began; None if that is not known.
    """

    key: str
    is_bad: bool
    title: str
    sentence: str
    advice: str
    step: int | None = None


LASTING: dict[Warned, tuple[bool, str, str, str]] = {
    Warned.DIRECTORY_GONE: (
        True,
        "run directory lost",
        "What was recorded and saved before is lost, and the figures here begin after it.",
        "Rely on what the script itself has saved elsewhere. Give the next run a --run-dir that "
        "nothing else clears or mounts over.",
    ),
    Warned.BEGAN_AGAIN: (
        False,
        "began from nothing",
        "What was trained before is not in the result: its weights are of the last beginning.",
        "Look why no checkpoint was used, in this report, before the next run.",
    ),
    Warned.NOT_WRITTEN: (
        False,
        "record incomplete",
        "The run's own files, and so this report, may lack what came last.",
        "Make room on the disk of the run directory before the next run.",
    ),
    Warned.PART_OFF: (
        False,
        "a part was off",
        "From then on the run went without it.",
        "Please report it, with its warning in events.jsonl, which holds the trace. Another run "
        "begins with the part on.",
    ),
    Warned.SUSPECT_HARDWARE: (
        False,
        "suspect hardware",
        "What this machine computes may be wrong.",
        "Test the memory and the device of this machine before the next run.",
    ),
}
"""Warnings that hold for the whole run, the worst first: `is_bad`, `title`, what it means (said
after the message, which tells what happened), `advice`. A further one is an entry here."""


def find_shortfalls(
    events: Sequence[JournalEvent],
    steps: npt.NDArray[np.int64],
    losses: Floats,
    risks: Floats,
    *,
    alarm: float,
) -> tuple[Shortfall, ...]:
    """Returns what of a run cannot be relied on, worst first.

    Args:
        events: of its journal, in the order of time.
        steps, losses, risks: each step once, as it happened last; NaN where nothing was seen.
        alarm: line of the risk.
    """
    found = [
        _high_loss(events, steps, losses),
        *_mistakes(events),
        *_warned(events),
        _not_saved(events),
        _open_alarm(events, steps, risks, alarm),
    ]
    return tuple(sorted((one for one in found if one), key=lambda one: not one.is_bad))


def level_above(losses: Floats) -> tuple[int, float, float] | None:
    """Returns where the best level was left, that level, and the last one, if that is far above it
    and the training has left it at once.

    Negative losses and losses of any size count alike: all is measured in spreads of the losses
    and in what the training had gained.
    """
    width = max(WINDOW, len(losses) // SHARE)
    if len(losses) < 3 * WINDOW:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(losses, width)[:: max(1, width // 4)]
    levels = np.median(windows, axis=1)
    place = int(np.argmin(levels))
    best, last = float(levels[place]), float(np.median(losses[-width:]))
    gained = max(float(levels[: place + 1].max()), float(np.median(losses[:5]))) - best
    rise, end = last - best, losses[-width:]
    is_far = rise > SPREADS * _spread(windows[place]) and rise > END_SPREADS * _spread(end)
    is_lost = rise > LOST * gained or 0.0 < EXPLODED * best < last
    if not (rise > 0.0 and is_far and is_lost):
        return None
    low = float(np.quantile(windows[place], 1.0 - INSIDE))
    left = int(np.flatnonzero(losses <= low)[-1])
    later = np.lib.stride_tricks.sliding_window_view(losses[left:], min(WINDOW, len(losses) - left))
    arrived = np.flatnonzero(np.median(later, axis=1) >= best + RISEN * rise)
    if not len(arrived) or int(arrived[0]) > max(WINDOW, AT_ONCE * len(losses)):
        return None
    return left, best, last


def is_back(after: Floats, before: Floats, first: Floats) -> bool:
    """Whether the level of `after` is the one of `before` again, or a better one; True with too few
    losses to say. `first`: of the run, from which it has come to the level before."""
    if len(before) < 3 or not len(after):
        return True
    level, usual = float(np.median(after)), float(np.median(before))
    rise, gained = level - usual, float(np.median(first)) - usual
    is_lost = rise > BACK * gained or 0.0 < EXPLODED * usual < level
    return not (level > float(before.max()) and rise > SPREADS * _spread(before) and is_lost)


def first_comparable(events: Sequence[JournalEvent]) -> int:
    """Returns the first step after the last change of what a loss means; in reinforcement learning
    there is none, because losses there grow with the rewards."""
    if any(isinstance(e, StateFound) and e.found is Found.REINFORCEMENT for e in events):
        return sys.maxsize
    changed = [e.step or 0 for e in events if isinstance(e, StateFound) and e.found in CHANGES]
    return max(changed, default=-1) + 1


def _spread(losses: Floats) -> float:
    """The standard deviation of normal noise of the same quartiles."""
    low, high = np.quantile(losses, [0.25, 0.75])
    return float(high - low) / 1.349


def _high_loss(
    events: Sequence[JournalEvent], steps: npt.NDArray[np.int64], losses: Floats
) -> Shortfall | None:
    finite = np.isfinite(losses)
    steps, losses = steps[finite], losses[finite]
    since = int(np.searchsorted(steps, first_comparable(events)))
    found = level_above(losses[since:]) or _beyond_all(losses, since)
    if found is None:
        return None
    place, best, last = found
    step = int(steps[since + place])
    return Shortfall(
        key=HIGH_LOSS,
        is_bad=True,
        title="loss far up",
        sentence=(
            f"The last losses, {last:.4g}, stand far above the best level, {best:.4g}, which "
            f"was left at step {step}: the last weights are worse than those were."
        ),
        advice=(
            f"Look at what changed after step {step}; if it was meant, announce it with "
            "supervisor.announce."
        ),
        step=step,
    )


def _beyond_all(losses: Floats, since: int) -> tuple[int, float, float] | None:
    """The same where a change explains a new level, but none so far above all that the untrained
    weights gave."""
    before, end = losses[:since], losses[since:][-WINDOW:]
    if len(before) < WINDOW or len(end) < WINDOW:
        return None
    levels = np.median(np.lib.stride_tricks.sliding_window_view(before, WINDOW // 4), axis=1)
    place, last = int(np.argmin(levels)), float(np.median(end))
    untrained = before[: place + WINDOW // 4]
    highest = float(levels[: place + 1].max())
    if not (last - highest > SPREADS * _spread(untrained) and last > EXPLODED * highest):
        return None
    return int(np.flatnonzero(before <= highest)[-1]) - since, float(levels[place]), last


def _mistakes(events: Sequence[JournalEvent]) -> list[Shortfall]:
    """One for each kind of silent mistake that was proved."""
    first: dict[str, AlertEvent] = {}
    for event in of_kind(events, AlertEvent):
        if event.category == "mistake":
            first.setdefault(event.alert_kind, event)
    return [
        Shortfall(
            key="mistake",
            is_bad=False,
            title="a mistake in the script",
            sentence=f"Mistake in the script, seen at step {event.step}: "
            f"{event.fact or event.message}.",
            advice=f"Mend it and train again: {event.metadata.get('mend') or 'see the place'}. "
            f"If it is meant: --set mistakes.on_purpose=[{kind}]",
            step=event.step,
        )
        for kind, event in first.items()
    ]


def _warned(events: Sequence[JournalEvent]) -> list[Shortfall]:
    first: dict[tuple[Warned, str], WarningEvent] = {}
    for event in events:
        if isinstance(event, WarningEvent) and event.found in LASTING:
            first.setdefault((event.found, event.message.rstrip(".")), event)
    found = []
    for (code, told), event in sorted(first.items(), key=lambda one: [*LASTING].index(one[0][0])):
        is_bad, title, means, advice = LASTING[code]
        found.append(
            Shortfall(
                key=code.name.lower(),
                is_bad=is_bad,
                title=title,
                sentence=f"{told[:1].upper()}{told[1:]}. {means}",
                advice=advice,
                step=event.step,
            )
        )
    return found


def _not_saved(events: Sequence[JournalEvent]) -> Shortfall | None:
    """Checkpoints that could not be saved since the last that could."""
    newest: int | None = None
    failed: list[WarningEvent] = []
    for event in events:
        if isinstance(event, CheckpointSaved) and not event.abandoned:
            newest, failed = event.step, []
        elif isinstance(event, WarningEvent) and event.found is Warned.NOT_SAVED:
            failed.append(event)
    if not failed:
        return None
    why = failed[-1].message.partition(": ")[2].rstrip(".") or failed[-1].message
    left = "a crash would have lost the whole training, and nothing can be resumed"
    if newest is not None:
        left = f"a resume would go back to step {newest}"
    saved = "No checkpoint" if newest is None else f"No checkpoint after step {newest}"
    return Shortfall(
        key="not_saved",
        is_bad=False,
        title="no checkpoint" if newest is None else "old checkpoint",
        sentence=f"{saved} could be saved: {left}.",
        advice=f"Make room, or give the next run a --run-dir on a disk that can be written: {why}.",
        step=failed[0].step,
    )


def _open_alarm(
    events: Sequence[JournalEvent], steps: npt.NDArray[np.int64], risks: Floats, alarm: float
) -> Shortfall | None:
    """The last alarm, if the risk never fell after it."""
    alarms = [e.step for e in events if isinstance(e, RiskEvent) and e.alarm and e.step is not None]
    if not alarms:
        return None
    after = risks[(steps >= alarms[-1]) & np.isfinite(risks)]
    if not len(after) or float(after.min()) < SILENT * alarm:
        return None
    return Shortfall(
        key="open_alarm",
        is_bad=False,
        title="alarm still on",
        sentence=(
            f"The alarm of step {alarms[-1]} was never taken back: at the end the predicted risk "
            f"was {float(after[-1]):.2f}."
        ),
        advice="Look at the losses and gradients of the last steps before you use the weights.",
        step=alarms[-1],
    )
