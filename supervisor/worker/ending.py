"""What is done when the worker's process ends."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.optim import Optimizer

from supervisor.events.state_events import WarningEvent
from supervisor.pipeline import Pipeline
from supervisor.storage.script_files.script_files import ScriptFiles
from supervisor.storage.steps.replay_log import ReplayLogWriter
from supervisor.training_state.optimizer_state import optimizer_parameters
from supervisor.training_state.tensors import local
from supervisor.worker.checkpoints.checkpointer import Checkpointer
from supervisor.worker.core.part import Ended
from supervisor.worker.core.parts import Parts
from supervisor.worker.core.worker_context import WorkerContext
from supervisor.worker.ranks.rank_context import RankContext
from supervisor.worker.samples.sample_guard import SampleGuard
from supervisor.worker.step_record.step_recorder import tell_unseen_updates

_POISONED_STEPS = 2
"""In a row: the update of the first made the loss of the second."""


class Sickness:
    """Says what the training's result is worth.

    Args:
        main: called, returns the optimizer whose updates are the steps; None if it is gone.
    """

    def __init__(
        self,
        context: WorkerContext,
        pipeline: Pipeline,
        samples: SampleGuard,
        main: Callable[[], Optimizer | None],
    ) -> None:
        self._registry = context.registry
        self._pipeline = pipeline
        self._health = context.health
        self._samples = samples
        self._main = main

    @property
    def samples_at_fault(self) -> tuple[str, ...]:
        """The samples on which loading failed."""
        return self._samples.evidence

    def reason(self) -> str:
        """Why the training's result is no good; empty if nothing is known against it.

        Called before the end, of a script that came to its end.
        """
        return self._bad_weights() or self._bad_course()

    def _bad_weights(self) -> str:
        """Only what the training's own optimizer has changed: a script may hold others, such as
        those of a trial that diverged."""
        main = self._main()
        if main is None:
            since = self._health.bad_losses
            if since < _POISONED_STEPS:  # a single one may come of its batch
                return ""
            return f"the loss was not finite in the last {since} steps, and their updates were made"
        parameters = optimizer_parameters(main)
        names = {
            id(parameter): f"{model}.{name}"
            for model, module in self._registry.models.items()
            for name, parameter in module.named_parameters()
        }
        bad = [p for p in parameters if p.is_floating_point() and not _is_finite(p)]
        if not bad:
            return ""
        first = names.get(id(bad[0]), "the first")
        return f"{len(bad)} of {len(parameters)} trained weights are not finite ({first})"

    def _bad_course(self) -> str:
        ladder = self._pipeline.ladder
        is_sick = self._health.is_alarm or self._health.bad_losses > 0 or ladder.waits_for_level
        if not is_sick or not ladder.has_spent_its_budget:
            return ""
        return "the budget of treatments is spent (policy: budget), and the trouble is not over"


class Ending:
    """Tells what is left to tell, and waits for what is being written."""

    def __init__(
        self,
        context: WorkerContext,
        parts: Parts,
        ranks: RankContext,
        checkpointer: Checkpointer,
        replay_log: ReplayLogWriter,
        script_files: ScriptFiles,
    ) -> None:
        self.progress, self.health, self.journal = context.progress, context.health, context.journal
        self.parts = parts
        self.ranks = ranks
        self.checkpointer = checkpointer
        self.replay_log = replay_log
        self.script_files = script_files

    def stop(self, *, completed: bool, parts: bool, updates_by_others: int) -> None:
        """Called once, when supervision is off. A failure leaves the script's own result as it is,
        and keeps nothing else from being done.

        Args:
            completed: the script came to its end.
            parts: it ends before its time, and its newest state is worth saving.
            updates_by_others: since the last step.
        """
        guarded, steps = self.parts.guarded, self.progress.steps_done
        guarded(self.ranks.agreement.stop)
        guarded(lambda: self._tell_unseen(steps, updates_by_others))
        self.parts.ends(Ended(steps=steps, completed=completed, parts=parts))
        guarded(lambda: self._close(steps, completed=completed))
        guarded(self.replay_log.close)
        if completed:
            guarded(self.script_files.stop)
        guarded(self.journal.close)

    def _tell_unseen(self, steps: int, updates_by_others: int) -> None:
        unseen = tell_unseen_updates(
            steps=steps,
            backward_calls=self.progress.probe.backward_calls,
            updates_by_others=updates_by_others,
            graph_replays=self.progress.graph_replays,
        )
        if unseen is not None:
            self.journal.write(WarningEvent(message=unseen, aloud=True))

    def _close(self, steps: int, *, completed: bool) -> None:
        if completed and not self.health.in_trouble(steps):
            self.checkpointer.close(ripen=(steps, self.health.last_trouble_step))
        else:
            self.checkpointer.close()


def _is_finite(parameter: torch.Tensor) -> bool:
    held = local(parameter)
    if held.is_meta or held.layout != torch.strided:
        return True
    return bool(torch.isfinite(held).all())
