"""What a script asks of its supervision, see `supervisor.worker.run`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from supervisor.codes import Found
from supervisor.events.state_events import StateFound
from supervisor.pipeline import Pipeline
from supervisor.records import Alert
from supervisor.storage.steps.replay_log import EntryKind
from supervisor.worker.core.part import Sides
from supervisor.worker.core.step_probe import observed_numbers
from supervisor.worker.core.training_hooks import ScriptReads
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.judging.step_judge import AlertTeller, StepJudge
from supervisor.worker.mistakes.evidence.mistake import Mistake
from supervisor.worker.worker_session import Session


class UserApi:
    """One method for each function of `supervisor.worker.run`, called in the training's thread.

    Args:
        reads: who answers what the script reads.
    """

    def __init__(
        self,
        context: WorkerContext,
        session: Session,
        step_judge: StepJudge,
        pipeline: Pipeline,
        alerts: AlertTeller,
        reads: Sides[ScriptReads],
    ) -> None:
        self.progress, self.breakers = context.progress, context.breakers
        self.journal = context.group_journal
        self.session = session
        self.step_judge = step_judge
        self.pipeline = pipeline
        self.handlers = alerts.handlers
        self.reads = reads

    def observe(self, values: dict[str, Any]) -> None:
        if self.session.call_state.replaying:
            return
        part = self.breakers("observe")
        with part, self.session.call_state.region():
            self.progress.probe.observed.update(observed_numbers(values))

    def announce(self, change: str) -> None:
        """In a replay only the announcement of the step that is trained next counts: the others are
        in the windows that come with the checkpoint."""
        with self.breakers("announce"):
            mistakes = self.session.mistakes
            if mistakes.is_kind(str(change)):
                mistakes.meant(str(change))
                return
            if self.session.call_state.replaying:
                self.session.resumption.announced()
                return
            self.progress.probe.announced = True
            step = self.progress.steps_done
            found = StateFound(step=step, found=Found.ANNOUNCED, detail=str(change))
            self.journal.write(found)

    def register_mistake(self, kind: type[Mistake]) -> None:
        with self.breakers("mistakes"):
            if not self.session.call_state.replaying:
                self.session.mistakes.add(kind())

    def track(self, name: str, value: Any) -> None:
        self.session.registry.track(name, value)

    def add_alert_handler(self, handler: Callable[[Alert], None]) -> None:
        self.handlers.append(handler)

    def add_detector(self, detector: Any) -> None:
        self.step_judge.judge_waiting()
        self.pipeline.detectors.append(detector)

    def leave_out_batch(self) -> bool:
        """Whether `supervisor.batches` is to leave out the next batch (action ``skip_data``)."""
        use = self.session.use
        use.batches = True
        if use.batches_to_leave_out == 0:
            return False
        use.batches_to_leave_out -= 1
        return True

    def allowed_batch_size(self, wanted: int) -> int:
        """The answer is on the replay log, so that a replay splits its batches as they were
        split."""
        self.session.use.batch_size = True
        controls = self.session.controls
        return int(
            self.reads.now.read(EntryKind.INT, lambda: max(1, int(wanted * controls.batch_factor)))
        )
