"""Which share of the time went into steps that still count, kept up to date as steps come."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable

from supervisor.events.event import JournalEvent
from supervisor.events.run_events import AttemptStarted
from supervisor.events.step_events import ActionEvent, RollbackEvent
from supervisor.records import StepRecord


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
                if event.name == "reinstate" and event.applied:
                    self._take_back(event)

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

    def _take_back(self, event: ActionEvent) -> None:
        """A rollback was taken back: what came after it is lost instead."""
        kept = (event.fields or {}).get("kept_step")
        if isinstance(kept, int) and kept in self._lost and event.step is not None:
            self._lost[kept] = (self._lost[kept][1], event.step)
