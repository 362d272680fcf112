"""Silent training mistakes: kind x told x step x place right x healthy twin silent, as JSON.

    python -m benchmarks.mistakes FOLDER [--json FILE]   pairs NN_*_bad.py (or _asked), _ok.py
    python -m benchmarks.mistakes FOLDER --supervised    the same, each under `supervisor run`
    python -m benchmarks.mistakes --healthy SCRIPT...    none of them may be accused
    python -m benchmarks.mistakes --cost                 of the first 200 steps, in pairs

Without ``--supervised`` the scripts run one after another in this process, under torch's own hooks:
a `MistakeWatch` sees the same moments in the same order.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import re
import runpy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.hooked_script import HookedScript
from supervisor.analysis.trial_run import TrialScript, try_script
from supervisor.events.step_events import AlertEvent
from supervisor.testing.mistake_check import Done

Told = tuple[str, int, str, str]
"""Kind, step, message and place."""
CATEGORIES = {"bad": "mistake", "asked": "question"}


def alerts_of(script: Path, words: Sequence[str] = (), *, category: str = "mistake") -> list[Told]:
    """Runs a script until the watch is over, or its own end, and returns what was told, or asked
    (`category` "question").

    Raises:
        Exception: what went wrong in the watch, or in the script.
    """
    run = HookedScript(ends_when_done=True)
    argv, sys.argv = sys.argv, [str(script), *words]
    try:
        ends = contextlib.suppress(Done, SystemExit)
        with run.patched(), contextlib.redirect_stdout(io.StringIO()), ends:
            runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv = argv
    if run.errors:
        raise run.errors[0]
    return [
        (one.kind, one.step, one.message, one.metadata["where"])
        for one in run.alerts
        if one.category == category
    ]


def told_in_run(
    script: Path, words: Sequence[str] = (), *, ranks: int = 1, category: str = "mistake"
) -> list[Told]:
    """The same under `supervisor run`.

    Raises:
        RuntimeError: the run failed.
    """
    options = ("--set", "mistakes.enabled=true", *(("--nproc-per-node", "2") * (ranks > 1)))
    with tempfile.TemporaryDirectory() as folder:
        found = TrialScript(words=(str(script), *words), options=options)
        run = try_script(found, Path(folder) / "run", {}, environment={"OMP_NUM_THREADS": "1"})
        events = [event for event in run.events(AlertEvent) if event.category == category]
    if run.returncode:
        raise RuntimeError(f"{script.name}: exit code {run.returncode}")
    return [
        (e.alert_kind or "", e.step or 0, e.message or "", str(e.metadata["where"])) for e in events
    ]


def judge_pairs(folder: Path, only: str = "", *, supervised: bool = False) -> list[dict[str, Any]]:
    """One row for each bad script of `folder` with `only` in its name; in this process, of those
    that one process can run."""
    with (folder / "LABELS.tsv").open() as file:
        labels = list(csv.DictReader(file, delimiter="\t"))
    rows = []
    for label in labels:
        ranks = int(label["ranks"])
        if label["label"] == "ok" or only not in label["file"] or (ranks > 1 and not supervised):
            continue
        script, category = folder / label["file"], CATEGORIES[label["label"]]
        healthy = script.with_name(label["file"].replace(f"_{label['label']}", "_ok"))
        if supervised:
            bad = told_in_run(script, ranks=ranks, category=category)
            twin = told_in_run(healthy, ranks=ranks)
        else:
            bad, twin = alerts_of(script, category=category), alerts_of(healthy)
        lines = {f"{script.name}:{line}" for line in label["line"].split(",")}
        kind, step, message, where = bad[0] if bad else ("", -1, "", "")
        rows.append(
            {
                "script": script.name,
                "told": [one[0] for one in bad],
                "step": step,
                "in_time": bool(kind) and step <= int(label["detectable_by_step"]),
                "named": bool(re.search(label["must_name"], message)),
                "where": where,
                "place_right": any(where.endswith(line) for line in lines),
                "twin_told": [one[0] for one in twin],
            }
        )
        if supervised:
            print(json.dumps(rows[-1]), flush=True)
    return rows


STEPS, PAIRS = 200, 5


def cost() -> list[dict[str, Any]]:
    """What the watch costs of the first steps of three trainings: CPU time of all of them with it
    and without, in pairs, and the time within the watch itself."""
    return [_cost(name, build) for name, build in TASKS.items()]


def _cost(name: str, build: Callable[[], Callable[[], Any]]) -> dict[str, Any]:
    shares, ratios, times = [], [], []
    for _ in range(PAIRS):
        plain, _ = _timed(build, is_enabled=False)
        watched, within = _timed(build, is_enabled=True)
        ratios.append(watched / plain - 1.0)
        shares.append(within / watched)
        times.append(within)
    return {
        "training": name,
        "steps": STEPS,
        "step_ms": round(1e3 * plain / STEPS, 3),
        "within_the_watch": round(statistics.median(shares), 5),
        "ms_in_all": round(1e3 * statistics.median(times), 2),
        "longer_in_pairs": round(statistics.median(ratios), 5),
        "of_pairs": [round(ratio, 4) for ratio in ratios],
    }


def _timed(build: Callable[[], Callable[[], Any]], *, is_enabled: bool) -> tuple[float, float]:
    torch.manual_seed(0)
    run, within = HookedScript(is_enabled=is_enabled), [0.0]
    for moment in ("forward", "forward_ended", "backward", "backward_ended", "before_update",
                   "updated", "batch", "evaluated"):  # fmt: skip
        _time_moment(run.watch, moment, within)
    with run.patched():
        step = build()
        began = time.thread_time()
        for _ in range(STEPS):
            step()
        took = time.thread_time() - began
    if run.errors:
        raise run.errors[0]
    return took, within[0]


def _time_moment(watch: Any, moment: str, within: list[float]) -> None:
    original = getattr(watch, moment)

    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.thread_time()
        result = original(*args, **kwargs)
        within[0] += time.thread_time() - began
        return result

    setattr(watch, moment, timed)


def _training(model: nn.Module, batch: Callable[[], tuple[Any, Any]]) -> Callable[[], Any]:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def step() -> None:
        inputs, targets = batch()
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def _small() -> Callable[[], Any]:
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    return _training(model, lambda: _largest(torch.randn(64, 32)))


def _convolutions() -> Callable[[], Any]:
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1)]
    for _ in range(4):
        layers += [nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    return _training(model, lambda: _largest(torch.randn(16, 3, 16, 16)))


def _transformer() -> Callable[[], Any]:
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    body = nn.TransformerEncoder(layer, 4)
    model = nn.Sequential(nn.Embedding(100, 128), body, nn.Linear(128, 100))
    return _training(model, _next_tokens)


def _largest(inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return inputs, inputs.flatten(1)[:, :10].argmax(1)


def _next_tokens() -> tuple[torch.Tensor, torch.Tensor]:
    tokens = (torch.randint(100, (8, 1)) + torch.randint(1, 3, (8, 1)) * torch.arange(33)) % 100
    return tokens[:, :-1], tokens[:, 1:]


TASKS = {"2 layers": _small, "10 convolutions": _convolutions, "transformer": _transformer}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--healthy", action="store_true")
    parser.add_argument("--supervised", action="store_true")
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if given.cost:
        rows = cost()
    elif given.healthy:
        look = told_in_run if given.supervised else alerts_of
        for path in given.paths:
            try:
                rows.append({"script": str(path), "told": [one[2] for one in look(path)]})
            except BaseException as error:
                rows.append({"script": str(path), "failed": repr(error)[:200]})
            print(json.dumps(rows[-1]), flush=True)
    else:
        for path in given.paths:
            rows += judge_pairs(path, supervised=given.supervised)
    if not given.healthy:
        for row in rows:
            print(json.dumps(row))
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
