"""The evidence for a cause and against it, as sentences with figures."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from supervisor.codes import ExitSign
from supervisor.events.state_events import CheckpointSaved, CheckpointStable, WarningEvent
from supervisor.report.facts.crash_report import AttemptFacts, Incident
from supervisor.report.facts.figures import duration, integer, show
from supervisor.report.facts.run_data import RunData
from supervisor.report.facts.step_table import Bools, Floats, StepTable
from supervisor.report.incidents.ending import is_far_above

WINDOW = 50
BEFORE_LR = 20
LARGE = 10.0  # times the median: a gradient norm that built up
LR_CHANGE = 0.3
LR_JUMP = 3.0
"""Ratio from one step to the next: only the first step of a warm-up, from zero, rises so much."""
MEMORY_GROWTH = 0.1
CALM_RISK = 0.3
_ASKED = ("interrupted", "preempted")
"""Ends that were asked for from outside: nothing in the script failed."""

Sentences = tuple[tuple[str, ...], tuple[str, ...]]


Weighed = Iterator[tuple[bool, str]]
"""Whether a sentence speaks for the cause, and the sentence."""


def _parted(weighed: Weighed) -> Sentences:
    found = list(weighed)
    told_for = tuple(sentence for is_for, sentence in found if is_for)
    return told_for, tuple(sentence for is_for, sentence in found if not is_for)


def numerical_evidence(run_data: RunData, *, step: int, end: int, attempt: int | None) -> Sentences:
    """Weighs what the recorded steps around numerical trouble at `step` ... `end` show."""
    rows = run_data.steps.of_attempt(attempt)
    before = rows.take(rows.step < step).take(slice(-WINDOW, None))
    at = rows.take(rows.step == step)
    weighed = itertools.chain(
        _weigh_loss(before, at, step),
        _weigh_gradient(before, at),
        _weigh_learning_rate(before),
        _weigh_loss_scale(before, at),
        _weigh_risk(before),
        _weigh_repetition(run_data.steps, step, attempt, before, at),
        _weigh_aftermath(rows.take(rows.step > end), before),
    )
    return _parted(weighed)


def process_evidence(run_data: RunData, attempt: AttemptFacts, cause: str) -> Sentences:
    """Weighs what is known about the end of a process."""
    return _parted(_weigh_process(run_data, attempt, cause))


def _weigh_process(run_data: RunData, attempt: AttemptFacts, cause: str) -> Weighed:
    is_told = cause == "hang" and attempt.sign is not ExitSign.FAILING_DEVICE
    for sentence in () if is_told else attempt.evidence:
        yield True, sentence
    rows = run_data.steps.of_attempt(attempt.number)
    if not len(rows):
        ended = "it had not reached its first one" if cause in _ASKED else "it failed during set-up"
        yield True, f"Attempt {attempt.number} recorded no step: {ended}."
        return
    yield from _weigh_memory(rows, cause)
    if cause == "hang":
        times = rows.step_time_s[np.isfinite(rows.step_time_s)]
        if len(times):
            yield True, f"No step before it had taken longer than {duration(float(times.max()))}."
    tail = rows.take(slice(-WINDOW, None))
    if not (tail.nonfinite_loss | tail.nonfinite_grad).any():
        risks = tail.risk[np.isfinite(tail.risk)]
        top = (
            f", with a risk below {show(max(0.01, 1.1 * float(risks.max())), 2)}"
            if len(risks)
            else ""
        )
        yield (
            False,
            f"The {len(tail)} steps before it were finite{top}: the numbers were not the trouble.",
        )


def memory_notes(run_data: RunData) -> tuple[str, ...]:
    """Returns what the flight recorder says about memory, for a run that ran out of it."""
    rows = run_data.steps
    seen = rows.take(np.isfinite(rows.memory_gib))
    if not len(seen):
        return ()
    last, top = float(seen.memory_gib[-1]), int(np.argmax(seen.memory_gib))
    notes = [
        f"Peak: {show(float(seen.memory_gib[top]), 3)} GiB at step {int(seen.step[top])};"
        f" {show(last, 3)} GiB at the last recorded step."
    ]
    tail = seen.take(slice(-200, None))
    grown = float(tail.memory_gib[-1] - tail.memory_gib[0])
    if len(tail) > 1:
        notes.append(f"Change over the last {len(tail)} steps: {show(grown, 2)} GiB.")
    return tuple(notes)


def _weigh_loss(before: StepTable, at: StepTable, step: int) -> Weighed:
    known = _finite(before.loss)
    if not len(known):
        yield True, f"No finite loss was recorded before step {step}."
        return
    level = float(np.median(known))
    if len(at) and (at.nonfinite_loss.any() or np.isfinite(at.loss).any()):
        is_new = bool(at.nonfinite_loss.any()) or float(at.loss[-1]) > 1.5 * abs(level)
        yield (
            is_new,
            (
                f"The loss was {show(float(at.loss[-1]))} at step {step}; the step before it"
                f" {show(float(known[-1]))}, the median of {len(known)} steps {show(level)}."
            ),
        )


def _weigh_gradient(before: StepTable, at: StepTable) -> Weighed:
    if len(at) and at.nonfinite_grad.any() and not at.nonfinite_loss.any():
        yield True, "The loss was finite while the gradient was not: it broke in backward."
    norms = _finite(before.grad_norm)
    if len(norms) < 5:
        return
    median, last = float(np.median(norms)), float(norms[-1])
    ratio = last / median if median > 0 else 1.0
    if ratio >= LARGE:
        yield (
            True,
            (
                f"The gradient norm had built up to {show(last)},"
                f" {show(ratio, 2)} times its median of {show(median)}."
            ),
        )
    else:
        yield (
            False,
            (
                f"The gradient norm was {show(last)} just before (median {show(median)}):"
                " nothing had built up, which points to a single batch or an overflow."
            ),
        )


def _weigh_learning_rate(before: StepTable) -> Weighed:
    rates = _finite(before.lr)[-BEFORE_LR:]
    if len(rates) < 2 or rates[0] <= 0:
        return
    change = float(rates[-1] / rates[0] - 1.0)
    if abs(change) > LR_CHANGE:
        yield (
            change > 0,
            (
                f"The learning rate went from {show(float(rates[0]))} to {show(float(rates[-1]))}"
                f" within the {len(rates)} steps before."
            ),
        )
    else:
        yield (
            False,
            (
                f"The learning rate was steady ({show(float(rates[-1]))}) in the {len(rates)} steps"
                " before: the schedule did not jump."
            ),
        )


def _weigh_loss_scale(before: StepTable, at: StepTable) -> Weighed:
    scales = _finite(np.concatenate([before.loss_scale, at.loss_scale]))
    if not len(scales):
        yield False, "No loss scale was seen: not an overflow of FP16 under a GradScaler."
        return
    if scales[-1] < scales.max() / 4:
        yield (
            True,
            (
                f"The loss scale had fallen from {show(float(scales.max()))} to"
                f" {show(float(scales[-1]))}: overflow after overflow."
            ),
        )
    else:
        yield (
            False,
            f"The loss scale was steady at {show(float(scales[-1]))}: no series of overflows.",
        )


def _weigh_risk(before: StepTable) -> Weighed:
    recent = before.take(slice(-20, None))
    risks = _finite(recent.risk)
    if not len(risks):
        return
    top = float(risks.max())
    if top >= CALM_RISK:
        step = int(recent.step[int(np.nanargmax(recent.risk))])
        yield True, f"The predicted risk was already {show(top, 2)} at step {step}."
    else:
        yield (
            False,
            (
                f"The predicted risk was below {show(max(0.01, 1.1 * top), 2)} in the {len(recent)}"
                " steps before: it came without a warning."
            ),
        )


def _is_bad(rows: StepTable, line: float) -> Bools:
    return rows.nonfinite_loss | rows.nonfinite_grad | (rows.loss > line)


def _weigh_repetition(
    steps: StepTable, step: int, attempt: int | None, before: StepTable, at: StepTable
) -> Weighed:
    same = steps.take((steps.step == step) & (steps.attempt != (attempt or 0)))
    known = _finite(before.loss)
    if not len(same) or not len(known):
        return
    line = 1.5 * abs(float(np.median(known)))
    if not _is_bad(at, line).any():
        return
    again = _is_bad(same, line)
    numbers = sorted(set(same.attempt.tolist()))
    others = f"attempt{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
    if again.any():
        yield (
            True,
            (
                f"Step {step} failed again in {others}: it is in the data, the code or the"
                " weights, not chance."
            ),
        )
    else:
        yield (
            False,
            (
                f"Step {step} passed when it was repeated in {others}. That points away from the"
                " data, to something transient or to what was changed in between."
            ),
        )


def _weigh_aftermath(after: StepTable, before: StepTable) -> Weighed:
    if len(after) < 5:
        return
    window = after.take(slice(0, WINDOW))
    known = _finite(window.loss)
    if window.nonfinite_loss.any() or not len(known):
        return
    level = float(np.median(known))
    text = f"The {len(window)} steps after it were finite, with a median loss of {show(level)}"
    old = _finite(before.loss)
    if len(old):
        text += f" (before: {show(float(np.median(old)))})"
    if is_far_above(known, old):
        yield True, f"{text}: the trouble did not pass, the loss stayed far above its level."
        return
    yield True, f"{text}: the trouble passed, and the weights are healthy."


def _weigh_memory(rows: StepTable, cause: str) -> Weighed:
    memory = _finite(rows.memory_gib)
    if len(memory) < 2:
        return
    early, last = float(np.median(memory[: max(2, len(memory) // 2)])), float(memory[-1])
    growth = last / early - 1.0 if early > 0 else 0.0
    is_about_memory = cause in ("out_of_memory", "host_out_of_memory")
    if growth > MEMORY_GROWTH:
        yield (
            is_about_memory,
            f"Memory had grown by {show(100 * growth, 2)} % to {show(last, 3)} GiB.",
        )
    elif is_about_memory:
        yield (
            False,
            (
                f"Memory was steady at {show(last, 3)} GiB until the last recorded step:"
                " one request too large came suddenly."
            ),
        )
    else:
        yield False, f"Memory was steady at {show(last, 3)} GiB, so it hardly ran out."


def _finite(values: Floats) -> Floats:
    return values[np.isfinite(values)]


def rate_jump(
    run_data: RunData, *, before: int, attempt: int | None
) -> tuple[int, float, float] | None:
    """Returns (step, rate before it, rate) of the last jump of the learning rate before a step."""
    rows = run_data.steps.of_attempt(attempt)
    rows = rows.take(rows.step < before)
    steps, rates = rows.step[-BEFORE_LR:], rows.lr[-BEFORE_LR:]
    for at in range(len(rates) - 1, 0, -1):
        if rates[at - 1] > 0 and rates[at] > LR_JUMP * rates[at - 1]:
            return int(steps[at]), float(rates[at - 1]), float(rates[at])
    return None


def rate_rise(run_data: RunData, *, before: int, attempt: int | None) -> tuple[float, float] | None:
    """Returns the first and the last rate of the 20 steps before a step, if the rate rose as much
    as in a jump. A warm-up that is too long or too high does that."""
    rows = run_data.steps.of_attempt(attempt)
    rates = _finite(rows.take(rows.step < before).lr)[-BEFORE_LR:]
    if len(rates) < 2 or rates[0] <= 0 or rates[-1] <= LR_JUMP * rates[0]:
        return None
    return float(rates[0]), float(rates[-1])


def last_checkpoint(run_data: RunData, *, stable: bool, before: int | None = None) -> int | None:
    """Returns the step of the newest checkpoint on the disk, or of the newest one in the journal if
    no manifest is left.

    Args:
        stable: only those that stayed healthy for long enough.
        before: only those of this step or an earlier one.
    """
    found = {integer(m.get("step")) for m in run_data.checkpoints if m.get("stable") or not stable}
    if not run_data.checkpoints:
        found |= {event.step for event in run_data.of(CheckpointStable)}
        if not stable:
            found |= {event.step for event in run_data.of(CheckpointSaved) if not event.abandoned}
        for event in run_data.of(WarningEvent):  # `supervisor prune` says what it deleted
            found -= set(event.pruned or ())
    known = (step for step in found if step is not None)
    return max((step for step in known if before is None or step <= before), default=None)


NAMED = 3
NEAR_STEPS = 50
"""A sample may be found some steps after its batch, when the script fetches ahead."""


def samples_behind(run_data: RunData, incident: Incident) -> str:
    """Returns the samples that were found at an incident or soon after, for a sentence.

    ``sample 37 of TensorDataset of 640``; empty if none was, or the incident is of another kind.
    """
    if incident.step is None or incident.key not in ("nonfinite_loss", "nonfinite_gradient"):
        return ""
    found: dict[str, list[str]] = {}
    for line in run_data.bad_samples:
        at = integer(line.get("found_at"))
        if at is None or not incident.step <= at <= incident.step + NEAR_STEPS:
            continue
        names = found.setdefault(str(line.get("data")), [])
        if str(line.get("sample")) not in names:
            names.append(str(line.get("sample")))
    return "; ".join(_told(data, names) for data, names in found.items())


def _told(data: str, names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"sample{'s' * (len(names) > 1)} {', '.join(names[:NAMED])}{more} of {data}"
