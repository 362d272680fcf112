"""The parent's copy of the worker's judgement, for when the worker can no longer be asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from supervisor.events.event import JournalEvent
from supervisor.events.step_events import RollbackEvent
from supervisor.records import CrashRisk, StepRecord
from supervisor.settings import PolicySettings, RunSettings

TOGETHER = 32
"""Steps that are judged at once, as in the worker; what it saves: benchmarks/pipeline_cost.py."""


class Replica:
    """Feeds every step of the flight recorder into the pipeline that the worker has too.

    It decides nothing. If the pipeline fails, the replica is switched off and says so once
    through `on_failure`: the run goes on without it.
    """

    def __init__(
        self,
        settings: RunSettings,
        policy: PolicySettings,
        *,
        on_failure: Callable[[str], None] = lambda message: None,
        build: Callable[[RunSettings, PolicySettings], Any] | None = None,
    ) -> None:
        self._settings = settings
        self._policy = policy
        self._on_failure = on_failure
        self._build = build or _build_pipeline
        self._pipeline: Any = None
        self._is_off = False
        self._rollbacks: list[tuple[int, int]] = []
        self.risk: CrashRisk | None = None
        self._last: StepRecord | None = None

    @property
    def is_risky(self) -> bool:
        """Whether the risk was at the policy's alarm line at the last step."""
        return self.risk is not None and self.risk.alarm

    @property
    def is_finite(self) -> bool:
        """Whether loss and gradient norm of the last step were numbers; False without one."""
        last = self._last
        return last is not None and not (last.has_nonfinite_loss or last.has_nonfinite_grad)

    def restart(self, history: Iterable[StepRecord] = ()) -> None:
        """Begins anew, as a worker does that starts from a checkpoint after `history`."""
        self._pipeline = None
        self._rollbacks.clear()
        self.risk = self._last = None
        self.update(history)
        if self._pipeline is not None and self._last is not None:
            self._pipeline.resumed(self._last.step + 1)

    def saw_events(self, events: Iterable[JournalEvent]) -> None:
        """Remembers rollbacks in place: the worker's windows went back with the weights."""
        for event in events:
            match event:
                case RollbackEvent(before_step=int(before), to_step=int(to_step)):
                    self._rollbacks.append((before, to_step))

    def update(self, records: Iterable[StepRecord]) -> None:
        """Takes in the next steps, as the group's records, in their order."""
        if self._is_off:
            return
        try:
            if self._pipeline is None:
                self._pipeline = self._build(self._settings, self._policy)
            together: list[StepRecord] = []
            for record in records:
                if self._rollbacks and self._rollbacks[0][0] <= record.step:
                    self._judge(together)
                    together = []
                    while self._rollbacks and self._rollbacks[0][0] <= record.step:
                        self._pipeline.rolled_back(self._rollbacks.pop(0)[1])
                together.append(record)
            self._judge(together)
        except Exception as error:
            self._is_off = True
            self._on_failure(f"risk in the parent is switched off: {type(error).__name__}: {error}")

    def _judge(self, records: Sequence[StepRecord]) -> None:
        for start in range(0, len(records), TOGETHER):
            for judgement in self._pipeline.update_all(records[start : start + TOGETHER]):
                self.risk, self._last = judgement.risk, judgement.record


def _build_pipeline(settings: RunSettings, policy: PolicySettings) -> Any:
    # Imported late: detectors bring numpy, and a run without steps needs neither.
    from supervisor.pipeline import Pipeline

    return Pipeline(settings, policy)
