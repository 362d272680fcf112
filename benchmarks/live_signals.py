"""What signals from inside the model add to loss and gradient norm: how much earlier, how false.

python -m benchmarks.live_signals FOLDER [--every 1 10 25] [--json FILE]

Trains some of the corpus' recipes (FOLDER keeps what they showed) with the looks of a supervised
run at every step, and judges each run twice: from loss, norm, rate and scale alone, and with the
figures of every so many looks. Prints a table by cause, and what each detector does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from benchmarks.corpus import conditions, training
from benchmarks.corpus.bench import Bench
from benchmarks.corpus.catalogue import catalogue
from benchmarks.corpus.outcome import judge
from benchmarks.corpus.recipe import Recipe
from benchmarks.scorecard.labelled_run import LabelledRun
from supervisor.config import load_policy
from supervisor.pipeline import Pipeline
from supervisor.records import StepRecord
from supervisor.settings import RunSettings
from supervisor.worker.core.interception_state import InterceptionState
from supervisor.worker.probes.forward_look import ForwardLook
from supervisor.worker.probes.patches_looks import look_at_modules
from supervisor.worker.probes.probes import FIGURES
from supervisor.worker.probes.update_look import UpdateLook

ARCHITECTURES = ("mlp", "cnn", "transformer", "lstm", "vae")
DETECTORS = (
    "update_ratio",
    "dead_layers",
    "activation_growth",
    "activation_range",
    "dead_units",
    "representation_collapse",
    "attention_logits",
    "attention_entropy",
    "loss_scale",
)
"""Those that read what only a live run has."""


class LookedAt:
    """Takes all looks at a training of the corpus, which knows nothing of it."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self._update, self._forward = UpdateLook(), ForwardLook()
        self._bench: Bench | None = None
        self._step = -1
        self._later: dict[str, float] = {}

    def begin(self, bench: Bench, step: int) -> None:
        """Called before each step."""
        self._bench, self._step = bench, step
        self._forward.begin({"model": bench.task.module})

    def saw_module(self, module: Any, output: Any, *, is_root: bool) -> None:
        self._forward.saw(module, output, is_root=is_root)

    def waited(self, seconds: float) -> None:
        pass

    def saw_scores(self, module: Any, scores: Any) -> None:
        look = self._forward
        look.attention.saw_scores(scores, look.readings, look.name_of(module))

    def saw_product(self, module: Any, query: Any, key: Any, given: dict[str, Any]) -> None:
        look = self._forward
        look.attention.saw_product(query, key, look.readings, look.name_of(module), given)

    @torch.no_grad()
    def before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._bench is None or optimizer is not self._bench.optimizer:
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        found = {**self._forward.take(), **self._update.before_update(optimizer, parameters)}
        self.rows.append((self._step, {**self._later, **found}))

    @torch.no_grad()
    def after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._bench is not None and optimizer is self._bench.optimizer:
            self._later = self._update.after_update()


@dataclass
class Showing:
    """A run, and what was seen inside of it at each step."""

    run: LabelledRun
    figures: dict[int, dict[str, float]]

    def records(self, every: int) -> Iterator[StepRecord]:
        """As a live run records them with a look every so many steps; 0 is no look at all."""
        for record in self.run.trace.records():
            seen = self.figures.get(record.step, {}) if every and record.step % every == 0 else {}
            wanted = {name: value for name, value in seen.items() if name in FIGURES}
            yield replace(record, observed={**record.observed, **wanted} if every else {})


def show(recipe: Recipe) -> Showing:
    """Trains `recipe` once, looked at."""
    looked = LookedAt()
    usual = conditions.CONDITIONS[recipe.condition]

    def condition(bench: Bench, step: int) -> None:
        looked.begin(bench, step)
        usual(bench, step)

    interception = InterceptionState()
    interception.depth = 1
    handles = [
        register_optimizer_step_pre_hook(looked.before),
        register_optimizer_step_post_hook(looked.after),
    ]
    take_off = look_at_modules(looked, interception)
    conditions.CONDITIONS[recipe.condition] = condition
    try:
        trace = training.train(recipe)
    finally:
        conditions.CONDITIONS[recipe.condition] = usual
        take_off()
        for handle in handles:
            handle.remove()
    return Showing(LabelledRun(trace, judge(trace)), dict(looked.rows))


def chosen() -> list[Recipe]:
    """Every fourth of the sick recipes, and of the healthy ones of adaptive optimizers or half
    precision: the signals of most interest are those of Adam and of FP16."""
    wanted = [
        recipe
        for recipe in catalogue()
        if recipe.architecture in ARCHITECTURES
        and (recipe.sick or recipe.optimizer in ("adam", "adamw") or recipe.precision != "fp32")
    ]
    return wanted[::4]


@dataclass
class Found:
    """The first steps at which a pipeline spoke of a run's crash, and what it said wrongly."""

    warned: int = -1
    alarmed: int = -1
    told: int = -1
    false_warnings: int = 0
    false_alarms: int = 0
    false_alerts: int = 0
    by_detector: dict[str, tuple[int, int]] | None = None
    """Detector → (first alert in the window or -1, false alerts)."""


def play(showing: Showing, every: int) -> Found:
    """Judges a run with a look every so many steps."""
    run = showing.run
    pipeline = Pipeline(RunSettings(), load_policy())
    first, peak = run.window if run.outcome.crashed else (0, 0)
    found = Found()
    heard: dict[str, list[int]] = {name: [-1, 0] for name in DETECTORS}
    was = (False, False)
    for record in showing.records(every):
        judgement = pipeline.update(record)
        step, risk = record.step, judgement.risk
        inside = run.outcome.crashed and first <= step < peak
        healthy = bool(run.healthy[step])
        if risk.warning and inside and found.warned < 0:
            found.warned = step
        if risk.alarm and inside and found.alarmed < 0:
            found.alarmed = step
        found.false_warnings += healthy and risk.warning and not was[0]
        found.false_alarms += healthy and risk.alarm and not was[1]
        was = (risk.warning, risk.alarm)
        for alert in judgement.alerts:
            if alert.detector in heard:
                mine = heard[alert.detector]
                if inside and mine[0] < 0:
                    mine[0] = step
                mine[1] += healthy
                found.false_alerts += healthy
                if inside and found.told < 0:
                    found.told = step
    found.by_detector = {name: (step, false) for name, (step, false) in heard.items()}
    return found


def load_or_show(folder: Path) -> Iterator[Showing]:
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for recipe in chosen():
        path = folder / f"{recipe.name}.pt"
        if not path.is_file():
            torch.save(show(recipe), path)
        yield torch.load(path, weights_only=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, nargs="+", default=[1, 10, 25])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    showings = list(load_or_show(options.folder))
    results = {every: [play(s, every) for s in showings] for every in (0, *options.every)}
    report = _summary(showings, results)
    _print(report)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1))


def _summary(showings: list[Showing], results: dict[int, list[Found]]) -> dict[str, Any]:
    steps = sum(int(s.run.healthy.sum()) for s in showings)
    crashed = [i for i, s in enumerate(showings) if s.run.outcome.crashed]
    report: dict[str, Any] = {"runs": len(showings), "crashes": len(crashed), "healthy": steps}
    plain = results[0]
    for every, found in results.items():
        gains = [
            (plain[i].warned if plain[i].warned >= 0 else showings[i].run.outcome.peak)
            - min(step for step in (found[i].warned, found[i].told) if step >= 0)
            for i in crashed
            if max(found[i].warned, found[i].told) >= 0
        ]
        per = 1e4 / max(1, steps)
        report[f"every {every}" if every else "loss and norm alone"] = {
            "warned": sum(found[i].warned >= 0 for i in crashed),
            "warned or told": sum(max(found[i].warned, found[i].told) >= 0 for i in crashed),
            "alarmed": sum(found[i].alarmed >= 0 for i in crashed),
            "median gain": statistics.median(gains) if gains else 0,
            "earlier by 1": sum(gain >= 1 for gain in gains),
            "earlier by 5": sum(gain >= 5 for gain in gains),
            "earlier by 20": sum(gain >= 20 for gain in gains),
            "false warnings": per * sum(f.false_warnings for f in found),
            "false alarms": per * sum(f.false_alarms for f in found),
            "false alerts": per * sum(f.false_alerts for f in found),
        }
    every = min(e for e in results if e)
    rows: dict[str, dict[str, Any]] = {}
    for name in DETECTORS:
        heard = [(f.by_detector or {})[name] for f in results[every]]
        leads = [showings[i].run.outcome.peak - heard[i][0] for i in crashed if heard[i][0] >= 0]
        before = [
            (plain[i].warned if plain[i].warned >= 0 else showings[i].run.outcome.peak)
            - heard[i][0]
            for i in crashed
            if heard[i][0] >= 0
        ]
        rows[name] = {
            "found": len(leads),
            "median lead": statistics.median(leads) if leads else 0,
            "first by": sum(gain > 0 for gain in before),
            "false": 1e4 / max(1, steps) * sum(false for _, false in heard),
        }
    report["detectors"] = rows
    causes: dict[str, list[int]] = defaultdict(list)
    for i in crashed:
        causes[showings[i].run.trace.recipe.condition].append(i)
    report["causes"] = {
        cause: {
            "crashes": len(members),
            "loss and norm": sum(plain[i].warned >= 0 for i in members),
            "with looks": sum(
                max(results[every][i].warned, results[every][i].told) >= 0 for i in members
            ),
        }
        for cause, members in sorted(causes.items())
    }
    return report


def _print(report: dict[str, Any]) -> None:
    print(f"{report['runs']} runs, {report['crashes']} crashes, {report['healthy']} healthy steps")
    for name, row in report.items():
        if not isinstance(row, dict):
            continue
        if name in ("detectors", "causes"):
            for key, figures in row.items():
                print(f"  {key:26s}", "  ".join(f"{k} {v:g}" for k, v in figures.items()))
        else:
            print(f"{name:20s}", "  ".join(f"{k} {v:.3g}" for k, v in row.items()))


if __name__ == "__main__":
    main()
