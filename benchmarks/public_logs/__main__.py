"""The predictor's scorecard on public training logs, beside published rules.

    python -m benchmarks.public_logs LOGS [--use tune|test|all|later] [--json FILE] [--only RULE]

LOGS is a folder with the logs as CSV files and an INDEX.md that labels them; `later` are the logs
of labels.tsv, on which nothing was fitted (`benchmarks.public_logs.collect` writes their folder).
An alarm is a rising edge that re-arms after 50 calm rows, for every rule alike. An event counts as
found when the rule is in alarm at a row from its onset to before its peak, or at the peak. Rates
are per 10,000 healthy rows. Of ours the treatments that it decides are counted, too (no
checkpoints): at healthy rows, in rows of sick runs before the first labelled onset, and until
`LATE` rows after the peak of a fatal event.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.public_logs.labels import LATER, Log, read_index, read_labels
from benchmarks.rules import RULES
from benchmarks.rules.base import Rule
from supervisor.analysis.backtest.backtest import AlarmEdge
from supervisor.analysis.backtest.trace import read_trace
from supervisor.config import load_policy
from supervisor.ladder.rungs import FREE
from supervisor.pipeline import Pipeline
from supervisor.records import StepRecord
from supervisor.settings import RunSettings

LATE = 5


@dataclass
class Seen:
    """What one judge made of one log.

    Attributes:
        alarms: of every row.
        warnings: raised.
        treated: rows at which a treatment was decided.
    """

    alarms: list[bool]
    warnings: int = 0
    treated: list[int] = field(default_factory=list)


@dataclass
class Score:
    """What one rule did on one selection of logs."""

    rule: str
    healthy_rows: int = 0
    alarms: int = 0
    warnings: int = 0
    fatal_events: int = 0
    fatal_found: int = 0
    fatal_found_by_peak: int = 0
    spikes: int = 0
    spikes_found: int = 0
    leads: list[int] = field(default_factory=list)
    shares_left: list[float] = field(default_factory=list)
    treated_in_health: int = 0
    early_rows: int = 0
    early_alarms: int = 0
    treated_early: int = 0
    fatal_treated: int = 0
    alarms_by_log: dict[str, int] = field(default_factory=dict)

    @property
    def alarms_per_10k(self) -> float:
        return 1e4 * self.alarms / max(1, self.healthy_rows)

    @property
    def warnings_per_10k(self) -> float:
        return 1e4 * self.warnings / max(1, self.healthy_rows)

    def take_in(self, log: Log, seen: Seen) -> None:
        alarms, warnings = seen.alarms, seen.warnings
        edge = AlarmEdge(0.5)
        raised = [row for row, value in enumerate(alarms) if edge.update(float(value))]
        count = len(raised)
        if log.events:
            first = log.events[0][0]
            self.early_rows += first
            self.early_alarms += sum(row < first for row in raised)
            self.treated_early += sum(row < first for row in seen.treated)
        if log.healthy:
            self.treated_in_health += len(seen.treated)
            self.healthy_rows += len(alarms)
            self.alarms += count
            self.warnings += warnings
            self.alarms_by_log[log.name] = count
        for onset, peak, kind in log.events:
            # A spike may be one row high: there, its peak counts too.
            stop = min(peak + (kind == "spike"), len(alarms))
            first = next((row for row in range(onset, stop) if alarms[row]), None)
            if kind == "spike":
                self.spikes += 1
                self.spikes_found += first is not None
                continue
            self.fatal_events += 1
            self.fatal_found_by_peak += any(alarms[onset : peak + 1])
            self.fatal_treated += any(onset <= row <= peak + LATE for row in seen.treated)
            if first is not None:
                self.fatal_found += 1
                self.leads.append(peak - first)
                self.shares_left.append((peak - first) / (peak - onset))


def run_predictor(records: list[StepRecord]) -> Seen:
    policy = load_policy()
    pipeline = Pipeline(RunSettings(), policy)
    seen, edge = Seen([]), AlarmEdge(policy.warn_threshold)
    for row, record in enumerate(records):
        judgement = pipeline.update(record)
        risk, decision = judgement.risk.probability, judgement.decision
        seen.alarms.append(risk >= policy.alarm_threshold)
        seen.warnings += edge.update(risk)
        if decision is not None and not FREE.issuperset(decision.actions):
            seen.treated.append(row)
    return seen


def run_rule(make: Callable[[int], Rule], records: list[StepRecord]) -> Seen:
    rule = make(len(records))
    return Seen([rule.update(record) for record in records])


def score_all(folder: Path, logs: Iterable[Log], only: str | None) -> list[Score]:
    rules: dict[str, Callable[[list[StepRecord]], Seen]] = {"training-supervisor": run_predictor}
    for name, make in RULES.items():
        rules[name] = lambda records, make=make: run_rule(make, records)
    chosen = {name: rule for name, rule in rules.items() if only is None or only in name}
    scores = {name: Score(rule=name) for name in chosen}
    for log in logs:
        records = list(read_trace(folder / f"{log.name}.csv"))
        for name, rule in chosen.items():
            scores[name].take_in(log, rule(records))
    return list(scores.values())


def summarize(score: Score) -> dict[str, Any]:
    median = statistics.median
    return {
        **asdict(score),
        "alarms_per_10k": round(score.alarms_per_10k, 2),
        "warnings_per_10k": round(score.warnings_per_10k, 2),
        "median_lead": median(score.leads) if score.leads else None,
        "median_share_left": round(median(score.shares_left), 2) if score.shares_left else None,
    }


def print_table(scores: list[Score]) -> None:
    print(
        f"| {'rule':34s} | alarms/10k | warnings/10k | fatal before, by peak | spikes | lead | "
        "left |"
    )
    print(f"| {'-' * 34} | --- | --- | --- | --- | --- | --- |")
    for score in scores:
        row = summarize(score)
        lead = "-" if row["median_lead"] is None else f"{row['median_lead']:g}"
        left = "-" if row["median_share_left"] is None else f"{row['median_share_left']:.0%}"
        print(
            f"| {score.rule:34s} | {row['alarms_per_10k']:.2f} | {row['warnings_per_10k']:.2f} | "
            f"{score.fatal_found}, {score.fatal_found_by_peak} of {score.fatal_events} | "
            f"{score.spikes_found}/{score.spikes} | "
            f"{lead} | {left} |"
        )
    for score in scores:
        if score.rule == "training-supervisor":
            print(
                f"\ntreated: {score.treated_in_health} healthy rows; {score.treated_early} in "
                f"{score.early_rows} rows before a first onset, and {score.early_alarms} alarms; "
                f"{score.fatal_treated} of {score.fatal_events} fatal events treated"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("logs", type=Path)
    parser.add_argument("--use", choices=["tune", "test", "all", LATER], default="all")
    parser.add_argument("--only", help="rules whose name contains this")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    document = {}
    for use in ("tune", "test") if arguments.use == "all" else (arguments.use,):
        logs = list(read_labels() if use == LATER else read_index(arguments.logs, use))
        scores = score_all(arguments.logs, logs, arguments.only)
        print(f"\n{use}: {scores[0].healthy_rows} healthy rows, {len(logs)} logs\n")
        print_table(scores)
        document[use] = [summarize(score) for score in scores]
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
