"""What each rule earns: every one switched off in turn.

    python -m benchmarks.scorecard.ablation CORPUS [--logs LOGS] [--splits train validation]
        [--seeds 1] [--json FILE] [--page docs/design/rules.md] [--only PART_OF_A_NAME]

CORPUS is a folder made by `python -m benchmarks.corpus`, LOGS one of public logs with an INDEX.md;
of these only the ones marked `tune` are read. Signals of the predictor, rules of the guard and of
the ladder (`benchmarks.scorecard.rules`) are switched off on these courses, on one healthy training
of each kind, and in small trainings that meet a fault and are treated. Detectors are judged by
their alerts. About ten minutes.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.scorecard.judged_course import (
    Course,
    Worth,
    alerts_of,
    corpus_courses,
    healthy_trainings,
    judge,
    tuning_logs,
    worth,
    worth_of_ladder,
)
from benchmarks.scorecard.rules import RULES, SIGNALS
from benchmarks.scorecard.treated_training import CASES, TASKS, TOLERANCE, Treated, TreatedTraining

ALL = "all rules"
BEGIN, END = "<!-- begin of the tables -->", "<!-- end of the tables -->"
NEAR = 10
"""Steps around which another detector told of the same crash, too, as early."""


@dataclass
class Ablation:
    """The sums, by the rule that was switched off; `ALL` for none."""

    rules: Sequence[str]
    by_rule: dict[str, Worth] = field(default_factory=dict)
    false_alerts: Counter[str] = field(default_factory=Counter)
    told: dict[str, list[int]] = field(default_factory=dict)
    told_first: Counter[str] = field(default_factory=Counter)
    told_alone: Counter[str] = field(default_factory=Counter)
    crashes: int = 0
    healthy_steps: int = 0

    def take_in(self, course: Course) -> None:
        """A signal that did not speak need not be switched off."""
        judged = judge(course)
        usual = worth(course, judged)
        self.crashes += len(course.crashes)
        self.healthy_steps += int(course.healthy.sum())
        self._add(ALL, usual)
        spoke = {name for judgement in judged for name in judgement.risk.contributions}
        for rule in self.rules:
            signals = SIGNALS & {*rule.split("+")}
            if not signals:
                self._add(rule, worth_of_ladder(course, judged, rule))
            else:
                self._add(rule, worth(course, judge(course, rule)) if signals & spoke else usual)
        wrong, told = alerts_of(course, judged)
        self.false_alerts += wrong
        for name, lead in told.items():
            self.told.setdefault(name, []).append(lead)
            others = [other for detector, other in told.items() if detector != name]
            self.told_alone[name] += not others
            self.told_first[name] += lead > max(others, default=0) + NEAR

    def _add(self, rule: str, found: Worth) -> None:
        self.by_rule.setdefault(rule, Worth()).add(found)

    def document(self) -> dict[str, Any]:
        usual = self.by_rule[ALL]
        return {
            "crashes": self.crashes,
            "healthy_steps": self.healthy_steps,
            "rules": {name: row(found, usual) for name, found in self.by_rule.items()},
            "detectors": {
                name: {
                    "false_per_10k": round(1e4 * self.false_alerts[name] / self.healthy_steps, 2),
                    "told": len(self.told.get(name, [])),
                    "median_lead": statistics.median(self.told.get(name) or [0]),
                    "told_first": self.told_first[name],
                    "told_alone": self.told_alone[name],
                }
                for name in sorted({*self.false_alerts, *self.told})
            },
        }


def row(found: Worth, usual: Worth) -> dict[str, Any]:
    """Figures of `found`; `later` is by how many steps crashes found with and without it are."""
    both = [usual.found[key] - found.found[key] for key in usual.found.keys() & found.found]
    return {
        "found": len(found.found),
        "later_found": sum(1 for steps in both if steps > 0),
        "later_steps": statistics.median([steps for steps in both if steps > 0] or [0]),
        "treated": found.treated,
        "false_alarms": found.false_alarms,
        "false_warnings": found.false_warnings,
        "treatments_on_healthy": found.treatments,
    }


def outcomes(rules: Sequence[str], seeds: int) -> dict[str, dict[str, Any]]:
    """Rule → what became of the small trainings without it."""
    reference = {
        (task, seed): TreatedTraining(task, "none", 0, seed).run().final_loss
        for task in TASKS
        for seed in range(seeds)
    }
    cases = [(task, fault, seed) for seed in range(seeds) for task, fault in CASES]
    usual = {
        (task, fault, seed): TreatedTraining(task, fault, _at(seed), seed, watched=rules).run()
        for task, fault, seed in cases
    }
    found = {ALL: _outcome(usual, reference)}
    for rule in rules:
        ends = {
            (task, fault, seed): TreatedTraining(task, fault, _at(seed), seed, without=rule).run()
            for task, fault, seed in cases
            if rule in usual[task, fault, seed].mattered
        }
        found[rule] = _outcome({**usual, **ends}, reference) | {"mattered_in": len(ends)}
    return found


def _at(seed: int) -> int:
    return 120 + 31 * seed


def _outcome(
    ends: dict[tuple[str, str, int], Treated], reference: dict[tuple[str, int], float]
) -> dict[str, Any]:
    ratios = {
        (task, fault, seed): end.final_loss / reference["mlp" if task == "half" else task, seed]
        for (task, fault, seed), end in ends.items()
    }
    return {
        "trainings": len(ends),
        "survived": sum(ratio <= TOLERANCE for ratio in ratios.values()),
        "treatments": sum(end.treatments for end in ends.values()),
        "lost": sorted(" ".join(map(str, key)) for key, r in ratios.items() if r > TOLERANCE),
        "mean_excess": round(
            statistics.fmean(min(max(ratio - 1.0, 0.0), 1.0) for ratio in ratios.values()), 4
        ),
    }


def tables(document: dict[str, Any]) -> str:
    """Both as Markdown."""
    heads = (
        "without", "crashes found", "later (median)", "treated", "false alarms", "false warnings",
        "treatments in health", "matters in", "survived", "mean excess", "treatments",
    )  # fmt: skip
    lines = [
        f"{document['crashes']} crashes, {document['healthy_steps']:,} healthy steps, "
        f"{document['outcomes'][ALL]['trainings']} trainings with a fault.\n",
        *_rows(heads, (_rule_row(document, name) for name in document["rules"])),
        "",
    ]
    heads = (
        "detector", "false alerts in 10,000", "crashes reported", "median lead",
        f"first by {NEAR} steps", "alone",
    )  # fmt: skip
    told = ([f"`{name}`", *figures.values()] for name, figures in document["detectors"].items())
    return "\n".join([*lines, *_rows(heads, told)])


def _rule_row(document: dict[str, Any], name: str) -> list[object]:
    figures, end = document["rules"][name], document["outcomes"].get(name, {})
    ends = [end.get(key, "-") for key in ("mattered_in", "survived", "mean_excess", "treatments")]
    return [
        name if name == ALL else f"`{name}`",
        figures["found"],
        f"{figures['later_found']} ({figures['later_steps']:g})",
        *(figures["treated"], figures["false_alarms"], figures["false_warnings"]),
        *(figures["treatments_on_healthy"], *ends),
    ]


def _rows(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    cells = [heads, ["---"] * len(heads), *rows]
    return [f"| {' | '.join(map(str, row))} |" for row in cells]


def write_page(document: dict[str, Any], page: Path) -> None:
    """Puts the tables into `page`, between its marks."""
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n\n{tables(document)}\n\n{END}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--logs", type=Path)
    parser.add_argument("--splits", nargs="+", default=["train", "validation"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", default="", help="rules whose name contains this")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path, help="docs/design/rules.md: its tables are replaced")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rules = [rule for rule in RULES if arguments.only in rule]
    ablation = Ablation(rules)
    courses = [corpus_courses(arguments.corpus, arguments.splits), healthy_trainings()]
    if arguments.logs:
        courses.append(tuning_logs(arguments.logs))
    for group in courses:
        for course in group:
            ablation.take_in(course)
    document = ablation.document() | {"outcomes": outcomes(rules, arguments.seeds)}
    print(tables(document))
    if arguments.page:
        write_page(document, arguments.page)
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
