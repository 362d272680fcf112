"""The result of `explain`: returned, printed, and written for the report."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from supervisor.analysis.explain.finding import NOTHING, StepFinding
from supervisor.analysis.explain.rules import Diagnosis
from supervisor.numerics.figures import figure, percent
from supervisor.table import table


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOutcome:
    """One line of the table; `at_step` is None if nothing crashed."""

    change: str
    crashed: bool
    at_step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The result of `explain`; the fields are those of ``explain --json``.

    Attributes:
        root_cause: ``data``, ``precision``, ``learning_rate``, ``optimizer_state``, ``weights``,
            ``model_code``, ``transient`` or ``unknown``.
        confidence: 0...1.
        ranks: how many were replayed, together.
        rank: whose sample, module and operation these are; None where none are named, and in a
            training of one process.
        sample: index of the faulty sample in its batch; None if there is none or it is unknown.
        module: dotted path of the first module with a non-finite result, ``(loss)`` outside the
            model, None if unknown.
        operation: the operation, or in the backward pass the one whose derivative it is.
        precision: comparison of FP32 with the precision in use at the bad step
            (`PrecisionView.to_dict`); None if all was FP32, or it was not looked at.
    """

    root_cause: str
    confidence: float
    replays: tuple[ReplayOutcome, ...]
    onset_step: int
    sample: int | None
    module: str | None
    operation: str | None
    summary: str
    precision: Mapping[str, Any] | None = None
    ranks: int = 1
    rank: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        together = f", {self.ranks} ranks replayed together" if self.ranks > 1 else ""
        lines = [f"trouble from step {self.onset_step} on{together}", ""]
        fates = [
            (
                replay.change,
                f"crashed at step {replay.at_step}" if replay.crashed else "did not crash",
            )
            for replay in self.replays
        ]
        lines.append(table((), fates, indent=2))
        lines += ["", f"root cause: {self.root_cause} (confidence {self.confidence:.0%})"]
        if self.sample is not None:
            whose = "the batch" if self.rank is None else f"rank {self.rank}'s batch"
            lines.append(f"sample: number {self.sample} of {whose}")
        elif self.rank is not None:
            lines.append(f"rank: {self.rank}")
        if self.module is not None:
            lines.append(f"module: {self.module}")
        if self.operation is not None:
            lines.append(f"operation: {self.operation}")
        if self.precision is not None:
            lines += ["", *precision_lines(self.precision), ""]
        return "\n".join([*lines, self.summary])


MOST_LINES = 12


def precision_lines(seen: Mapping[str, Any]) -> list[str]:
    """Returns a table of the layers with the largest errors, in forward order, and the overflow.

    Args:
        seen: `PrecisionView.to_dict`.
    """
    layers = seen["layers"]
    worst = sorted(layers, key=lambda layer: -layer["relative_error"])[:MOST_LINES]
    rows = [
        (layer["name"], layer["type"], percent(layer["relative_error"]),
         percent(layer["own_error"]), layer["level"])
        for layer in layers
        if layer in worst
    ]  # fmt: skip
    how = "under autocast" if seen["autocast"] else "with weights in it"
    lines = [
        f"FP32 against {seen['dtype'].upper()} {how}, at this state and batch",
        table(("layer", "type", "error", "own", "level"), rows),
    ]
    if len(layers) > len(rows):
        lines.append(f"{len(layers) - len(rows)} layers with smaller errors are in --json")
    overflow = seen["overflow"]
    if overflow:
        share, largest = percent(overflow["saturated_share"]), figure(overflow["largest"])
        name = overflow["dtype"].upper()
        lines.append(
            f"overflow: {overflow['name']}: up to {largest}, {share} of it too large for {name}"
        )
        lines += [f"- {advice}" for advice in overflow["advice"]]
    return lines


ADVICE = {
    "data": "look at this sample and at the preparation of the data",
    "precision": "compute the unstable part in FP32, or use BF16",
    "learning_rate": "lower the learning rate from there on, or lengthen its warm-up",
    "optimizer_state": "reset the optimizer's state, or raise its epsilon",
    "weights": "go on from an older checkpoint with `supervisor resume RUN --from STEP`",
    "model_code": "look at the model's code and at the loss for what begins at this step",
    "transient": "continue with `supervisor resume RUN`; if it comes again, test the machine",
    "unknown": "`supervisor report RUN` shows all that is known",
}


def explanation_of(
    onset: int,
    diagnosis: Diagnosis,
    outcomes: Sequence[ReplayOutcome],
    finding: StepFinding = NOTHING,
) -> Explanation:
    """Combines what the replays and the inspection of the bad step showed.

    Args:
        onset: first step of the trouble.
        diagnosis, outcomes: from the replays.
        finding: from the inspection.
    """
    cause = diagnosis.root_cause.replace("_", " ")
    told = {
        "unknown": f"The cause of the trouble at step {onset} is not known",
        "transient": f"The trouble at step {onset} was transient",
    }.get(diagnosis.root_cause, f"The trouble at step {onset} comes from the {cause}")
    advice = diagnosis.advice or ADVICE[diagnosis.root_cause]
    if diagnosis.root_cause == "model_code" and finding.fix and not diagnosis.advice:
        advice = finding.fix
    clauses = "; ".join(clause for clause in (finding.detail, advice) if clause)
    return Explanation(
        root_cause=diagnosis.root_cause,
        confidence=round(diagnosis.confidence, 2),
        replays=tuple(outcomes),
        onset_step=onset,
        rank=finding.rank if finding.detail else None,
        sample=finding.sample,
        module=finding.place,
        operation=finding.operation or None,
        precision=finding.precision,
        summary=f"{told}: {diagnosis.because}. {clauses[:1].upper()}{clauses[1:]}.",
    )
