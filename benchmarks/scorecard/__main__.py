"""The scorecard of the crash predictor on the corpus, beside published rules.

    python -m benchmarks.scorecard CORPUS [--split test] [--without pair] [--json FILE]
        [--pictures FOLDER]

CORPUS is a folder made by `python -m benchmarks.corpus`. Every judge sees the same records; ours is
the pipeline of a live run. An alarm is false at a healthy step, and finds a crash from 20 steps
before its onset to before its peak (`benchmarks/corpus/outcome.py` defines them). Decisions are all
that would change the training, updates that are left out included. Train and validation are
also given together. On the test split nothing is chosen: it only measures.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.scorecard.calibration import reliability
from benchmarks.scorecard.card import card, decisions, grouped
from benchmarks.scorecard.labelled_run import load_runs
from benchmarks.scorecard.measurement import OURS, Measurement, measure
from benchmarks.scorecard.picture import draw
from benchmarks.scorecard.print_card import print_card
from benchmarks.scorecard.roc import partial_areas, sweep

SPLITS = ("train", "validation", "test")


def score(measured: Sequence[Measurement]) -> dict[str, Any]:
    """All figures of one split."""
    names = [OURS, *(name for name in measured[0].strengths if name != OURS)]
    areas = partial_areas(measured, {name: sweep(measured, name) for name in names})
    labels = [m.run.outcome.label for m in measured]
    return {
        "runs": len(measured),
        "labels": {label: labels.count(label) for label in sorted(set(labels))},
        "judges": {
            name: {**card(measured, lambda m, n=name: m.strengths[n] >= 1.0), **areas[name]}
            for name in names
        },
        "warnings": card(measured, lambda m: m.risk >= 0.3),
        "decisions": decisions(measured),
        "decisions_with_intended_changes": decisions([m for m in measured if m.run.trace.intended]),
        "by": {
            key: grouped(measured, lambda m: m.strengths[OURS] >= 1.0, key)
            for key in ("condition", "architecture")
        },
        "calibrated": reliability(measured, "calibrated"),
        "raw_risk": reliability(measured, "risk"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--split", choices=[*SPLITS, "all"], default="all")
    parser.add_argument("--without", default="", help="architecture to leave out")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--pictures", type=Path, help="write scorecard_SPLIT.png there")
    arguments = parser.parse_args()
    splits = SPLITS if arguments.split == "all" else (arguments.split,)
    measured = [
        measure(run)
        for run in load_runs(arguments.corpus)
        if run.split in splits and run.trace.recipe.architecture != arguments.without
    ]
    parts = {split: [m for m in measured if m.run.split == split] for split in splits}
    if arguments.split == "all":
        parts["train and validation"] = parts["train"] + parts["validation"]
    document = {}
    for split, part in parts.items():
        document[split] = score(part)
        print_card(split, document[split])
        if arguments.pictures:
            arguments.pictures.mkdir(parents=True, exist_ok=True)
            path = arguments.pictures / f"scorecard_{split.replace(' ', '_')}.png"
            draw(split, part, document[split], path)
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
