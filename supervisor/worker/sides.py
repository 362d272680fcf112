"""Who answers the subjects' own patches, in the live run and in the replay."""

from __future__ import annotations

from supervisor.worker.core.part import Sides
from supervisor.worker.core.process_signs import Heartbeat
from supervisor.worker.core.training_hooks import ScriptReads, TrainingHooks
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.gradients.called_hooks import CalledHooks, GradientHooks
from supervisor.worker.live import Live
from supervisor.worker.loading.loader_hooks import LoaderHooks
from supervisor.worker.loading.loading_hooks import LoadingHooks
from supervisor.worker.random_state.random_states import ReadsRandom
from supervisor.worker.reads.recording import Recording
from supervisor.worker.reads.script_reads import LiveReads
from supervisor.worker.replay import Replay


class AllSides:
    """One `Sides` a subject.

    Attributes:
        hooks: of forwards, backwards and updates.
    """

    def __init__(
        self,
        context: WorkerContext,
        live: Live,
        replay: Replay | None,
        recording: Recording,
        gradient_hooks: CalledHooks,
        heartbeat: Heartbeat,
    ) -> None:
        loaders, reads = LoaderHooks(context, recording, heartbeat), LiveReads(context, recording)
        self.hooks = Sides[TrainingHooks](live, replay)
        self.loading = Sides[LoadingHooks](loaders, replay.loading if replay else None)
        self.reads = Sides[ScriptReads](reads, replay.reads if replay else None)
        self.random = Sides[ReadsRandom](recording.random, replay.random if replay else None)
        self.gradients = Sides[GradientHooks](
            gradient_hooks, replay.gradient_hooks if replay else None
        )

    def go_live(self) -> None:
        for sides in (self.hooks, self.loading, self.reads, self.random, self.gradients):
            sides.goes_live()
