"""What the parts of a worker share."""

from __future__ import annotations

import time

from supervisor.actions.controls import Controls
from supervisor.config import load_resolved_policy
from supervisor.ranks import RankPlace
from supervisor.risk_lines import RiskLines
from supervisor.settings import RunSettings
from supervisor.storage.journal.journal import Journal, SilentJournal
from supervisor.storage.run.run_state import load_order
from supervisor.storage.run.rundir import RunDirectory
from supervisor.training_state.registry import Registry
from supervisor.worker.core.boundaries import BoundarySchedule, GroupTurns, Turns
from supervisor.worker.core.breakers import Breakers
from supervisor.worker.core.budget import SharedBudget
from supervisor.worker.core.call_state import CallState
from supervisor.worker.core.progress import Progress, RunWarnings, ScriptUse
from supervisor.worker.core.run_health import RunHealth
from supervisor.worker.core.step_probe import StepProbe


class WorkerContext:
    """What nearly every part reads, writes to or asks. It holds no part.

    A part that takes much of it has a class method `of`, which makes the part and does not keep it.

    Args:
        rundir, attempt: of the run.
        place: among the ranks that were started together.
        settings: of the run.
        schedule: of boundaries, for so many ranks.
        probe: keeps what is seen of the step under way.

    Attributes:
        policy, order: what may be changed, and where this attempt begins.
        journal: of this rank; `group_journal` is for what all ranks find, decide and do alike: the
            first rank writes it.
        budget: of the copies of the state that can wait.
        suffix: of the files that each rank has for itself, beside those of the first rank.
        is_experiment: this is a replay of `supervisor explain`.

    Raises:
        SupervisorError: an order or policy that cannot be read.
        OSError: the run directory cannot be written.
    """

    def __init__(
        self,
        rundir: RunDirectory,
        attempt: int,
        place: RankPlace,
        settings: RunSettings,
        schedule: BoundarySchedule,
        probe: StepProbe,
    ) -> None:
        self.rundir, self.attempt, self.place, self.rank = rundir, attempt, place, place.rank
        self.settings = settings
        self.policy = load_resolved_policy(rundir.policy_yaml)
        self.order = load_order(rundir, attempt)
        self.is_experiment = bool(self.order.experiment)
        self.suffix = "" if place.is_first_rank else f"_rank_{place.rank}"
        self.registry, self.controls, self.use = Registry(), Controls(), ScriptUse()
        self.call_state = CallState()
        self.progress = Progress(probe)
        self.journal = Journal(
            rundir.rank_journal(self.rank), attempt=attempt, rank=self.rank, limits=settings.limits
        )
        self.group_journal = self.journal if place.is_first_rank else SilentJournal()
        self.warn = RunWarnings(self.journal, self.progress)
        self.breakers = Breakers(self.journal, self.call_state.turn_off, self.progress.lose_replay)
        self.schedule = schedule
        self.budget = SharedBudget(time.monotonic())
        self.turns = (Turns if place.is_alone else GroupTurns)(schedule)
        self.health = RunHealth(RiskLines.of(self.policy))

    def may_change(self) -> bool:
        """Asked whenever something of the training is about to be changed: a policy that only
        observes can come into force in mid run."""
        return not self.policy.observe_only

    def warn_aloud(self, message: str) -> None:
        """In the journal, and at the terminal."""
        self.warn(message, aloud=True)
