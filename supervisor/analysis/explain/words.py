"""A diagnosis in words."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.analysis.explain.explanation import Explanation, ReplayOutcome
from supervisor.analysis.explain.finding import NOTHING, StepFinding
from supervisor.analysis.explain.rules import Diagnosis

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
