"""Frames of a simulated training: a latent-variable model whose posterior collapses."""

from __future__ import annotations

import math
import random
from collections import deque

from supervisor.cli.watch.view import HISTORY, LINES, WatchEvent, WatchView
from supervisor.config import load_config, load_policy
from supervisor.pipeline import Pipeline
from supervisor.records import StepRecord

STEPS = 1200
STEPS_A_FRAME = 10
COLLAPSE_AT = 500


class DemoView:
    """Feeds simulated steps into the real pipeline.

    The same seed gives the same frames.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._pipeline = Pipeline(load_config(), load_policy())
        self._losses: deque[float] = deque(maxlen=HISTORY)
        self._risks: deque[float] = deque(maxlen=HISTORY)
        self._events: deque[WatchEvent] = deque(maxlen=LINES)
        self._step = 0

    def look(self) -> WatchView:
        """Simulates some steps and returns the frame after them."""
        record = self._record(self._step)
        for _ in range(STEPS_A_FRAME):
            record = self._record(self._step)
            self._take_in(record)
            self._step += 1
        ended = self._step >= STEPS
        return WatchView(
            title="demo (simulated)",
            state="completed" if ended else "running",
            attempt=1,
            record=record,
            risk=self._risks[-1],
            steps=range(self._step - len(self._losses), self._step),
            losses=list(self._losses),
            risks=list(self._risks),
            events=list(self._events),
            observed=record.observed,
            ended=ended,
            lines=self._pipeline.lines,
        )

    def _take_in(self, record: StepRecord) -> None:
        judgement = self._pipeline.update(record)
        self._losses.append(record.loss)
        self._risks.append(judgement.risk.probability)
        for alert in judgement.alerts:
            self._say(record.step, alert.severity.value, alert.message)
        if judgement.decision is not None and judgement.decision.actions:
            actions = ", ".join(judgement.decision.actions)
            self._say(record.step, "would do", actions)

    def _say(self, step: int, kind: str, sentence: str) -> None:
        """Adds a line; a repeated one is shown once, with its newest step."""
        for event in list(self._events):
            if (event.kind, event.sentence) == (kind, sentence):
                self._events.remove(event)
        self._events.append(WatchEvent(step=step, kind=kind, sentence=sentence))

    def _record(self, step: int) -> StepRecord:
        noise = self._random.gauss(0.0, 1.0)
        alive = 1.0 / (1.0 + math.exp((step - COLLAPSE_AT) / 40.0))
        recon = 0.6 + 1.4 * math.exp(-step / 150.0) + 0.5 * (1.0 - alive) + 0.02 * noise
        kl = 4.0 * alive + 0.002
        return StepRecord(
            step=step,
            loss=recon + 0.1 * kl,
            grad_norm=1.0 + 0.1 * abs(noise),
            lr=1e-3,
            step_time_s=0.02,
            batch_size=64,
            loss_seen=True,
            grad_norm_seen=True,
            observed={
                "kl": kl,
                "latent_variance": 0.9 * alive + 0.01,
                "active_units": alive,
                "recon_loss": recon,
            },
        )
