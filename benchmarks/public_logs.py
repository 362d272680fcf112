"""The predictor's scorecard on public training logs, beside published rules.

    python benchmarks/public_logs.py LOGS [--use tune|test|all] [--json FILE] [--only RULE]

LOGS is a folder with the logs as CSV files and an INDEX.md that labels them. An alarm is a rising
edge that re-arms after 50 calm rows, for every rule alike. An event counts as found when the rule
is in alarm at a row from its onset to before its peak. Rates are per 10,000 healthy rows.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.rules import RULES
from benchmarks.rules.base import Rule
from supervisor.analysis.backtest.backtest import AlarmEdge
from supervisor.analysis.backtest.trace import read_trace
from supervisor.config import load_policy
from supervisor.pipeline import Pipeline
from supervisor.records import StepRecord
from supervisor.settings import RunSettings

EVENT = re.compile(r"(\d+)→(\d+) (\w+)")


@dataclass(frozen=True)
class Log:
    """One labelled log; events are (onset row, peak row, kind)."""

    name: str
    use: str
    healthy: bool
    events: tuple[tuple[int, int, str], ...]


@dataclass
class Score:
    """What one rule did on one selection of logs."""

    rule: str
    healthy_rows: int = 0
    alarms: int = 0
    warnings: int = 0
    fatal_events: int = 0
    fatal_found: int = 0
    spikes: int = 0
    spikes_found: int = 0
    leads: list[int] = field(default_factory=list)
    shares_left: list[float] = field(default_factory=list)
    alarms_by_log: dict[str, int] = field(default_factory=dict)

    @property
    def alarms_per_10k(self) -> float:
        return 1e4 * self.alarms / max(1, self.healthy_rows)

    @property
    def warnings_per_10k(self) -> float:
        return 1e4 * self.warnings / max(1, self.healthy_rows)

    def take_in(self, log: Log, alarms: list[bool], warnings: int) -> None:
        if log.healthy:
            edge = AlarmEdge(0.5)
            count = sum(edge.update(float(value)) for value in alarms)
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
            if first is not None:
                self.fatal_found += 1
                self.leads.append(peak - first)
                self.shares_left.append((peak - first) / (peak - onset))


def read_index(folder: Path, use: str) -> Iterator[Log]:
    """The labelled logs of `folder`; `use` is tune, test or all."""
    for line in (folder / "INDEX.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) < 12 or not re.match(r"[ht]\d", cells[0]):
            continue
        if use in ("all", cells[1]):
            events = tuple((int(a), int(b), kind) for a, b, kind in EVENT.findall(cells[10]))
            yield Log(cells[0], cells[1], cells[2] == "healthy", events)


def run_predictor(records: list[StepRecord]) -> tuple[list[bool], int]:
    policy = load_policy()
    pipeline = Pipeline(RunSettings(), policy)
    alarms, warnings, edge = [], 0, AlarmEdge(policy.warn_threshold)
    for record in records:
        risk = pipeline.update(record).risk
        alarms.append(risk.probability >= policy.alarm_threshold)
        warnings += edge.update(risk.probability)
    return alarms, warnings


def run_rule(make: Callable[[int], Rule], records: list[StepRecord]) -> tuple[list[bool], int]:
    rule = make(len(records))
    return [rule.update(record) for record in records], 0


def score_all(folder: Path, logs: Iterable[Log], only: str | None) -> list[Score]:
    rules: dict[str, Callable[[list[StepRecord]], tuple[list[bool], int]]] = {
        "training-supervisor": run_predictor
    }
    for name, make in RULES.items():
        rules[name] = lambda records, make=make: run_rule(make, records)
    chosen = {name: rule for name, rule in rules.items() if only is None or only in name}
    scores = {name: Score(rule=name) for name in chosen}
    for log in logs:
        records = list(read_trace(folder / f"{log.name}.csv"))
        for name, rule in chosen.items():
            scores[name].take_in(log, *rule(records))
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
    print(f"| {'rule':34s} | alarms/10k | warnings/10k | fatal found | spikes | lead | left |")
    print(f"| {'-' * 34} | --- | --- | --- | --- | --- | --- |")
    for score in scores:
        row = summarize(score)
        lead = "-" if row["median_lead"] is None else f"{row['median_lead']:g}"
        left = "-" if row["median_share_left"] is None else f"{row['median_share_left']:.0%}"
        print(
            f"| {score.rule:34s} | {row['alarms_per_10k']:.2f} | {row['warnings_per_10k']:.2f} | "
            f"{score.fatal_found}/{score.fatal_events} | {score.spikes_found}/{score.spikes} | "
            f"{lead} | {left} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("logs", type=Path)
    parser.add_argument("--use", choices=["tune", "test", "all"], default="all")
    parser.add_argument("--only", help="rules whose name contains this")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    document = {}
    for use in ("tune", "test") if arguments.use == "all" else (arguments.use,):
        logs = list(read_index(arguments.logs, use))
        scores = score_all(arguments.logs, logs, arguments.only)
        print(f"\n{use}: {scores[0].healthy_rows} healthy rows, {len(logs)} logs\n")
        print_table(scores)
        document[use] = [summarize(score) for score in scores]
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
