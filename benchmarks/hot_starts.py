"""Rates 10 to 100 times too high from the first step: which of them `hot_start` tells of.

    python -m benchmarks.hot_starts [ARCHITECTURE ...] [--seed 7]

Trains the tasks of the corpus for 160 steps with each optimizer at 0.3 to 100 times its rate, half
a minute an architecture on a core. A run is hot if it lives, has ten times the rate or more, and
ends 1.25 times above the best run of up to three times the rate; those are the healthy ones. Beside
it stands how many of them the default policy sees at all (an alarm, or a failed start). The
detector's lines were chosen on mlp, transformer and vae.
"""

from __future__ import annotations

import argparse
import math
import warnings

import numpy as np
import torch
from torch import nn

from benchmarks.corpus.catalogue import RATES
from benchmarks.corpus.optimizers import OPTIMIZERS
from benchmarks.corpus.tasks import TASKS
from supervisor.config import load_policy
from supervisor.detectors.schedule.hot_start import HotStartDetector
from supervisor.pipeline import Pipeline
from supervisor.records import StepRecord
from supervisor.settings import RunSettings

STEPS = 160
FACTORS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
HEALTHY = 3.0
HARMED = 1.25
LAST = 30


def train(architecture: str, optimizer_name: str, factor: float, seed: int) -> list[StepRecord]:
    """The steps of a run, up to the first value that is not finite."""
    torch.manual_seed(seed)
    task = TASKS[architecture](torch.Generator().manual_seed(seed + 1))
    rate = factor * RATES[architecture][optimizer_name]
    optimizer = OPTIMIZERS[optimizer_name](task.module.parameters(), rate)
    records: list[StepRecord] = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = task.loss()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = float(nn.utils.clip_grad_norm_(task.module.parameters(), math.inf))
        value = float(loss.detach())
        if not math.isfinite(value + norm):
            break
        records.append(
            StepRecord(
                step=step, loss=value, grad_norm=norm, lr=rate, loss_seen=True, grad_norm_seen=True
            )
        )
        optimizer.step()
        task.second_half()
    return records


def told_at(records: list[StepRecord]) -> int | None:
    """The step of the detector's alert."""
    detector = HotStartDetector()
    return next((r.step for r in records if detector.update(r) is not None), None)


def is_seen(records: list[StepRecord]) -> bool:
    """Whether the default policy has an alarm, or starts the run once more."""
    judged = Pipeline(RunSettings(), load_policy()).update_all(records)
    return any(
        j.risk.alarm or (j.decision is not None and "back_to_start" in j.decision.actions)
        for j in judged
    )


def measure(architecture: str, seed: int) -> None:
    hot = found = healthy = false = died = seen = 0
    missed = []
    for name in RATES[architecture]:
        runs = {factor: train(architecture, name, factor, seed) for factor in FACTORS}
        ends = {
            factor: float(np.median([r.loss for r in records[-LAST:]]))
            for factor, records in runs.items()
            if len(records) == STEPS
        }
        died += len(FACTORS) - len(ends)
        best = min(end for factor, end in ends.items() if factor <= HEALTHY)
        for factor, end in ends.items():
            told = told_at(runs[factor])
            if factor <= HEALTHY:
                healthy += 1
                false += told is not None
            elif end > HARMED * best:
                hot += 1
                found += told is not None
                seen += told is not None or is_seen(runs[factor])
                if told is None:
                    missed.append(f"{name} x{factor:g} ({end / best:.2f})")
    print(
        f"{architecture}: {found} of {hot} hot runs told of ({seen} with alarms and failed "
        f"starts), {false} of {healthy} healthy ones; "
        f"{died} died of NaN; missed: {', '.join(missed) or 'none'}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("architectures", nargs="*", default=["mlp", "transformer", "vae", "cnn"])
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for architecture in arguments.architectures:
        measure(architecture, arguments.seed)


if __name__ == "__main__":
    main()
