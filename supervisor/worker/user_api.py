"""What a script asks of its supervision, see `supervisor.worker.run`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from supervisor.codes import Found
from supervisor.events.state_events import StateFound
from supervisor.pipeline import Pipeline
from supervisor.records import Alert
from supervisor.storage.steps.tape import EntryKind
from supervisor.worker.core.part import Sides
from supervisor.worker.core.step_probe import observed_numbers
from supervisor.worker.core.training_hooks import ScriptReads
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.judging.dispatcher import AlertTeller, Dispatcher
from supervisor.worker.mistakes.mistake import Mistake
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
        dispatcher: Dispatcher,
        pipeline: Pipeline,
        alerts: AlertTeller,
        reads: Sides[ScriptReads],
    ) -> None:
        self.progress, self.barrier = context.progress, context.barrier
        self.journal = context.group_journal
        self.session = session
        self.dispatcher = dispatcher
        self.pipeline = pipeline
        self.handlers = alerts.handlers
        self.reads = reads

    def observe(self, values: dict[str, Any]) -> None:
        if self.session.interception.replaying:
            return
        part = self.barrier("observe")
        with part, self.session.interception.region():
            self.progress.probe.observed.update(observed_numbers(values))

    def announce(self, change: str) -> None:
        """In a replay only the announcement of the step that is trained next counts: the others are
        in the windows that come with the checkpoint."""
        with self.barrier("announce"):
            mistakes = self.session.mistakes
            if mistakes.is_kind(str(change)):
                mistakes.meant(str(change))
                return
            if self.session.interception.replaying:
                self.session.resumption.announced()
                return
            self.progress.probe.announced = True
            step = self.progress.steps_done
            found = StateFound(step=step, found=Found.ANNOUNCED, detail=str(change))
            self.journal.write(found)

    def register_mistake(self, kind: type[Mistake]) -> None:
        with self.barrier("mistakes"):
            if not self.session.interception.replaying:
                self.session.mistakes.add(kind())

    def track(self, name: str, value: Any) -> None:
        self.session.registry.track(name, value)

    def add_alert_handler(self, handler: Callable[[Alert], None]) -> None:
        self.handlers.append(handler)

    def add_detector(self, detector: Any) -> None:
        self.dispatcher.judge_waiting()
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
        """The answer is on the tape, so that a replay splits its batches as they were split."""
        self.session.use.batch_size = True
        controls = self.session.controls
        return int(
            self.reads.now.read(EntryKind.INT, lambda: max(1, int(wanted * controls.batch_factor)))
        )
