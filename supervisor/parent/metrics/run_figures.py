"""The figures of a run, from its steps and its journal.

Prometheus' text format, version 0.0.4.
"""

from __future__ import annotations

import math
import threading
import time
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from supervisor.codes import Found
from supervisor.events.event import JournalEvent
from supervisor.events.run_events import AttemptStarted, RunFinished, WorkerExited
from supervisor.events.state_events import CheckpointSaved, StateFound
from supervisor.events.step_events import ActionEvent, AlertEvent, RollbackEvent
from supervisor.records import CrashRisk, StepRecord
from supervisor.storage.journal.events import JournalTreatments
from supervisor.version import __version__

TOTAL_STEPS = "total_steps"
"""The observed value that tells how long a run will be."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: labels → value, for each of its series.

    Attributes:
        kind: ``gauge`` or ``counter``.
        samples: none: the metric is left out.
    """

    name: str
    kind: str
    meaning: str
    samples: tuple[tuple[Mapping[str, str], float], ...]


def render(metrics: Iterable[Metric]) -> str:
    """Returns the document that a scrape gets."""
    lines: list[str] = []
    for metric in metrics:
        if not metric.samples:
            continue
        lines.append(f"# HELP {metric.name} {_escape(metric.meaning)}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        for labels, value in metric.samples:
            text = ",".join(
                f'{name}="{_escape(told, quote=True)}"' for name, told in labels.items()
            )
            lines.append(f"{metric.name}{{{text}}} {_number(value)}")
    return "\n".join(lines) + "\n"


def _escape(text: str, *, quote: bool = False) -> str:
    escaped = text.replace("\\", r"\\").replace("\n", r"\n")
    return escaped.replace('"', r"\"") if quote else escaped


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))


STATES = ("running", "completed", "gave_up", "interrupted", "failed")


class RunFigures:
    """Hears steps and events in the parent's threads; any thread may ask for the metrics.

    Args:
        run: name of the run directory, a label of every series.
        script: path, or name of a module.
        checkpoint_s: unix time of the newest checkpoint that is there already.
        clock: unix time; the wall of the goodput begins now.

    Attributes:
        reports_itself: the script tells Kubeflow Trainer of its progress.
    """

    def __init__(
        self,
        run: str,
        script: str,
        *,
        checkpoint_s: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._run = run
        self._script = script
        self._clock = clock
        self._began_s = clock()
        self._lock = threading.Lock()
        self._checkpoint_s = checkpoint_s
        self._goodput = Goodput()
        self._record: StepRecord | None = None
        self.reports_itself = False
        self._loss = self._grad_norm = self._step_time_s = math.nan
        self._risk: CrashRisk | None = None
        self._state = STATES[0]
        self._attempt = 0
        self._steps = 0
        self._picker = JournalTreatments()
        self._treatments: Counter[str] = Counter()
        self._alerts: Counter[str] = Counter()
        self._exits: Counter[str] = Counter()

    def stepped(self, records: Sequence[StepRecord], risk: CrashRisk | None) -> None:
        """Takes in the next steps, and the risk after them."""
        with self._lock:
            self._risk = risk
            self._goodput.stepped(records)
            self._steps += len(records)
            for record in records:
                self._record = record
                if record.loss_seen:
                    self._loss = record.loss
                if record.grad_norm_seen:
                    self._grad_norm = record.grad_norm
                if math.isfinite(record.step_time_s):
                    self._step_time_s = record.step_time_s

    def saw(self, events: Iterable[JournalEvent]) -> None:
        """Takes in the next events of the journal."""
        with self._lock:
            for event in events:
                self._goodput.saw(event)
                for name, treated in self._picker.pick([event]):
                    self._treatments[name] += treated.times
                match event:
                    case AttemptStarted():
                        self._attempt = event.attempt or self._attempt + 1
                    case CheckpointSaved(abandoned=False):
                        self._checkpoint_s = _unix_time(event.time, self._clock())
                    case AlertEvent(severity=severity):
                        self._alerts[severity.value if severity else "unknown"] += event.times
                    case WorkerExited(cause=cause):
                        self._exits[cause.value if cause else "unknown"] += 1
                    case StateFound(found=Found.REPORTS_ITSELF):
                        self.reports_itself = True
                    case RunFinished(state=state):
                        self._state = state

    @property
    def has_stepped(self) -> bool:
        """Whether a step was seen; true from then on, whatever comes."""
        return self._record is not None

    @property
    def state(self) -> str:
        """Of the run."""
        return self._state

    @property
    def total_steps(self) -> float:
        """How many the run will make, as the script has told (``observe``); NaN if it has not."""
        record = self._record
        return math.nan if record is None else record.observed.get(TOTAL_STEPS, math.nan)

    def metrics(self) -> list[Metric]:
        """Returns all metrics as they are now; those that nothing is known of have no series."""
        with self._lock:
            return [*self._of_the_steps(), *self._of_the_run()]

    def _of_the_steps(self) -> list[Metric]:
        record, risk = self._record, self._risk
        step = None if record is None else float(record.step)
        lr = math.nan if record is None else record.lr
        scale = math.nan if record is None else record.loss_scale
        # NaN is a loss that a run may have; before the first step there is none.
        loss = None if record is None else self._loss
        return [
            self._gauge("training_step", "Last step, counted over all attempts.", step),
            self._gauge("training_loss", "Last loss seen; NaN is the loss itself.", loss),
            self._gauge("training_gradient_norm", "Last norm before clipping.", self._grad_norm),
            self._gauge("training_learning_rate", "Of the script, without treatments.", lr),
            self._gauge("training_loss_scale", "Of the GradScaler.", scale),
            self._gauge("training_step_seconds", "Duration of the last step.", self._step_time_s),
            self._gauge(
                "training_risk",
                "Risk of a crash within the next 20 steps, 0 to 1.",
                None if risk is None else risk.probability,
            ),
        ]

    def _of_the_run(self) -> list[Metric]:
        now_s = self._clock()
        wall_s = max(now_s - self._began_s, 1e-9)
        saved_s = self._checkpoint_s
        age_s = None if saved_s is None else max(0.0, now_s - saved_s)
        info = {"run": self._run, "script": self._script, "version": __version__}
        states = tuple(
            ({"run": self._run, "state": state}, float(state == self._state)) for state in STATES
        )
        return [
            Metric("training_run_info", "gauge", "What is trained.", ((info, 1.0),)),
            Metric("training_state", "gauge", "1 for the state that the run is in.", states),
            self._gauge("training_attempts", "Number of the attempt.", float(self._attempt)),
            self._gauge("training_last_checkpoint_age_seconds", "Its age.", age_s),
            self._gauge("training_last_checkpoint_timestamp_seconds", "When saved.", saved_s),
            self._gauge(
                "training_goodput_ratio",
                "Share of the time since this supervisor began that went into steps that count.",
                min(1.0, self._goodput.useful_s() / wall_s),
            ),
            self._counted("training_steps_total", "Steps made, repeated ones too.", self._steps),
            self._counter("training_treatments_total", "Changes made.", "name", self._treatments),
            self._counter("training_alerts_total", "Alerts.", "severity", self._alerts),
            self._counter("training_worker_exits_total", "Ends of workers.", "cause", self._exits),
        ]

    def _gauge(self, name: str, meaning: str, value: float | None) -> Metric:
        """NaN means unknown, except for the loss."""
        is_known = value is not None and (name == "training_loss" or not math.isnan(value))
        samples = (({"run": self._run}, value),) if is_known and value is not None else ()
        return Metric(name, "gauge", meaning, samples)

    def _counted(self, name: str, meaning: str, count: int) -> Metric:
        return Metric(name, "counter", meaning, (({"run": self._run}, float(count)),))

    def _counter(self, name: str, meaning: str, label: str, counts: Mapping[str, int]) -> Metric:
        samples = tuple(
            ({"run": self._run, label: key}, float(count)) for key, count in sorted(counts.items())
        )
        return Metric(name, "counter", meaning, samples)


def _unix_time(text: str, otherwise: float) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return otherwise


class Goodput:
    """The useful seconds of a run, by the rules of the report's ledger (`report.facts.ledger`).

    It keeps 16 bytes a step. Not useful are steps that a later attempt makes again, and steps that
    a rollback threw away.
    """

    def __init__(self) -> None:
        self._steps = array("q")
        self._until_s = array("d")  # seconds of all steps up to this one
        self._computing_s = 0.0
        self._stalled_s = 0.0
        self._lost: dict[int, tuple[int, int]] = {}  # boundary → first lost step - 1, last one

    def stepped(self, records: Iterable[StepRecord]) -> None:
        """Takes in the next steps of the attempt."""
        for record in records:
            if self._steps and record.step <= self._steps[-1]:
                self._go_back(record.step - 1)
            took_s = record.step_time_s
            took_s = took_s if math.isfinite(took_s) and took_s > 0 else 0.0
            self._computing_s += took_s
            self._until_s.append(took_s + (self._until_s[-1] if self._until_s else 0.0))
            self._steps.append(record.step)

    def saw(self, event: JournalEvent) -> None:
        """Takes in an event of the journal."""
        match event:
            case AttemptStarted(checkpoint_step=step):
                self._go_back(-1 if step is None else step)
            case RollbackEvent(before_step=int(before), from_step=int(source), to_step=int(target)):
                self._lost[before] = (target, source)
            case ActionEvent(is_verdict=False, cost_s=cost_s):
                self._stalled_s += cost_s if math.isfinite(cost_s) and cost_s > 0 else 0.0

    def useful_s(self) -> float:
        """Returns the seconds of training that are part of the present weights."""
        if self._computing_s <= 0.0:
            return 0.0
        useful_s = self._up_to(self._steps[-1]) if self._steps else 0.0
        done = -1
        for target, source in sorted(self._lost.values()):
            begin = max(target, done)
            useful_s -= max(0.0, self._up_to(source) - self._up_to(begin))
            done = max(done, source)
        stalled_s = min(self._stalled_s, self._computing_s)
        return useful_s / self._computing_s * (self._computing_s - stalled_s)

    def _up_to(self, step: int) -> float:
        """Seconds of the steps up to `step`."""
        place = bisect_right(self._steps, step)
        return self._until_s[place - 1] if place else 0.0

    def _go_back(self, step: int) -> None:
        place = bisect_right(self._steps, step)
        del self._steps[place:], self._until_s[place:]
        within = {key: (begin, min(end, step)) for key, (begin, end) in self._lost.items()}
        self._lost = {key: (begin, end) for key, (begin, end) in within.items() if begin < end}
