"""Digests of all judgements of recorded runs, for a change that must not change any.

python -m benchmarks.judgements [FOLDER_OF_LOGS] [--json FILE] [--against FILE]
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from supervisor.analysis.backtest.trace import read_trace
from supervisor.config import load_policy
from supervisor.pipeline import Judgement, Pipeline
from supervisor.records import StepRecord
from supervisor.settings import RunSettings
from supervisor.testing import HEALTHY_KINDS, TROUBLED_KINDS, synthetic_run

STEPS = 3000
BLOCK = 31
"""Steps that are judged together, as in a live run."""


def digest(records: Iterable[StepRecord]) -> str:
    """Returns a digest of risk, alerts, decision and outcomes of every step, their words aside."""
    pipeline = Pipeline(RunSettings(), load_policy())
    found = hashlib.sha256()
    for judgement in _judged(pipeline, list(records)):
        found.update(_text(judgement).encode())
    return found.hexdigest()[:16]


def _judged(pipeline: Pipeline, records: list[StepRecord]) -> Iterator[Judgement]:
    for at in range(0, len(records), BLOCK):
        yield from pipeline.update_all(records[at : at + BLOCK])


def _text(judgement: Judgement) -> str:
    risk, decision = judgement.risk, judgement.decision
    judged = (risk.step, risk.probability, risk.warning, risk.alarm, risk.cause, risk.onset_step)
    alerts = [
        (a.step, a.severity.value, a.detector, a.kind, a.value, a.threshold)
        for a in judgement.alerts
    ]
    decided = decision and (decision.actions, decision.undo, decision.rung, decision.cause.value)
    outcomes = [(found.name, found.step, found.outcome) for found in judgement.outcomes]
    return repr((judged, alerts, decided, outcomes))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("logs", nargs="?", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--against", type=Path, help="digests that an earlier version wrote")
    arguments = parser.parse_args()
    found = {kind: digest(synthetic_run(kind, STEPS)) for kind in (*HEALTHY_KINDS, *TROUBLED_KINDS)}
    logs = sorted(arguments.logs.glob("*.csv")) if arguments.logs else []
    found |= {path.name: digest(read_trace(path)) for path in logs}
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))
    earlier = json.loads(arguments.against.read_text()) if arguments.against else {}
    for name, value in found.items():
        changed = name in earlier and earlier[name] != value
        print(f"{name:36s} {value} {'CHANGED' if changed else ''}")
    return 1 if any(found.get(name) != value for name, value in earlier.items()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
