"""What every judge says of every step of a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.rules import RULES
from benchmarks.scorecard.labelled_run import LabelledRun
from supervisor.config import load_policy
from supervisor.ladder.rungs import FREE
from supervisor.pipeline import Pipeline
from supervisor.prediction.calibration import weigh
from supervisor.settings import RunSettings

OURS = "training-supervisor"
ACTS = f"{OURS}, alarms and treatments"
"""A treatment without an alarm (the guard's, after a failed start) saves or harms a run, too."""


@dataclass(frozen=True)
class Measurement:
    """Of one run, a value a step.

    Attributes:
        strengths: judge → evidence in units of its published alarm line.
        contributions: signal of our predictor → its own probability.
        risk: our predictor's scale for policies, on which its alarm line is.
        evidence, calibrated: what the contributions weigh, and as a probability; both order the
            steps alike.
        decisions: whether our ladder decided on something that changes the training.
        rankings: our judges → calibrated, by which they are swept at other lines.
    """

    run: LabelledRun
    strengths: dict[str, np.ndarray]
    contributions: dict[str, np.ndarray]
    risk: np.ndarray
    evidence: np.ndarray
    calibrated: np.ndarray
    decisions: np.ndarray
    rankings: dict[str, np.ndarray]


def measure(run: LabelledRun) -> Measurement:
    """Runs all rules, and our pipeline just as it is in a live run."""
    records = list(run.trace.records())
    strengths = {}
    for name, make in RULES.items():
        rule = make(len(records))
        strengths[name] = np.array([rule.measure(record) for record in records])
    policy = load_policy()
    found: dict[str, np.ndarray] = {}
    risk, evidence, calibrated = np.zeros((3, len(records)))
    decisions = np.zeros(len(records), dtype=bool)
    pipeline = Pipeline(RunSettings(), policy)
    for step, record in enumerate(records):
        judgement = pipeline.update(record)
        judged, decision = judgement.risk, judgement.decision
        decisions[step] = decision is not None and not FREE.issuperset(decision.actions)
        risk[step], calibrated[step] = judged.probability, judged.calibrated
        evidence[step] = weigh(judged.contributions)
        for signal, value in judged.contributions.items():
            found.setdefault(signal, np.zeros(len(records)))[step] = value
    strengths[OURS] = risk / policy.alarm_threshold
    strengths[ACTS] = np.maximum(strengths[OURS], decisions)
    rankings = {OURS: calibrated, ACTS: np.maximum(calibrated, decisions)}
    return Measurement(run, strengths, found, risk, evidence, calibrated, decisions, rankings)
