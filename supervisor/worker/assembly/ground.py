"""Which worker this is, what it was told, and what nearly every part of it writes to or reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from supervisor.actions.controls import Controls
from supervisor.config import load_resolved_config, load_resolved_policy
from supervisor.ranks import RankPlace
from supervisor.records import WorkerOrder
from supervisor.risk_lines import RiskLines
from supervisor.settings import PolicySettings, RunSettings
from supervisor.storage.journal.journal import Journal, SilentJournal
from supervisor.storage.run.orders import load_order
from supervisor.storage.run.rundir import RunDirectory
from supervisor.training_state.registry import Registry
from supervisor.worker.capture.state_digests import TrailProbe
from supervisor.worker.ground.boundary_schedule import BoundarySchedule
from supervisor.worker.ground.error_barrier import ErrorBarrier
from supervisor.worker.ground.interception_state import InterceptionState
from supervisor.worker.ground.progress import Progress
from supervisor.worker.ground.run_health import RunHealth
from supervisor.worker.ground.run_warnings import RunWarnings
from supervisor.worker.ground.script_use import ScriptUse
from supervisor.worker.ground.step_probe import StepProbe
from supervisor.worker.ground.turns import GroupTurns, Turns
from supervisor.worker.group.exchanges import Exchanges
from supervisor.worker.group.first_averages import FirstAverages
from supervisor.worker.group.group_schedule import GroupSchedule


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a worker knows before anything of it is built.

    Attributes:
        place: among the ranks that were started together.
        kept: see `Given.kept`.
    """

    rundir: RunDirectory
    attempt: int
    place: RankPlace
    settings: RunSettings
    policy: PolicySettings
    order: WorkerOrder
    kept: Sequence[str]

    @property
    def rank(self) -> int:
        return self.place.rank

    @property
    def is_one_node(self) -> bool:
        return self.place.local_world_size == self.place.world_size

    @property
    def file_suffix(self) -> str:
        """Of the files that each rank has for itself, beside those of the first rank."""
        return "" if self.place.leads else f"_rank_{self.rank}"


def load_task(rundir: RunDirectory, attempt: int, place: RankPlace, kept: Sequence[str]) -> Task:
    """Reads what the parent has left for this attempt.

    Raises:
        SupervisorError: an order, config or policy that cannot be read.
    """
    return Task(
        rundir=rundir,
        attempt=attempt,
        place=place,
        settings=load_resolved_config(rundir.config_yaml),
        policy=load_resolved_policy(rundir.policy_yaml),
        order=load_order(rundir, attempt),
        kept=kept,
    )


@dataclass(frozen=True, kw_only=True)
class Ground:
    """The parts that need no other.

    Attributes:
        group_journal: for what all ranks find, decide and do alike: the first rank writes it.
    """

    interception: InterceptionState
    progress: Progress
    journal: Journal
    group_journal: Journal
    warn: RunWarnings
    barrier: ErrorBarrier
    schedule: BoundarySchedule
    turns: Turns
    health: RunHealth
    use: ScriptUse
    registry: Registry
    controls: Controls
    exchanges: Exchanges
    averages: FirstAverages


def build_ground(task: Task) -> Ground:
    probe_of = TrailProbe if task.settings.trail else StepProbe
    progress = Progress(probe_of(task.settings.in_environment))
    interception = InterceptionState()
    journal = Journal(
        task.rundir.rank_journal(task.rank),
        attempt=task.attempt,
        rank=task.rank,
        limits=task.settings.limits,
    )
    return Ground(
        interception=interception,
        progress=progress,
        journal=journal,
        group_journal=journal if task.place.leads else SilentJournal(),
        warn=RunWarnings(journal, progress),
        barrier=ErrorBarrier(journal, interception.turn_off, progress.tape_is_broken),
        schedule=BoundarySchedule() if task.place.is_alone else GroupSchedule(),
        turns=Turns() if task.place.is_alone else GroupTurns(),
        health=RunHealth(RiskLines.of(task.policy)),
        use=ScriptUse(),
        registry=Registry(),
        controls=Controls(),
        exchanges=Exchanges(),
        averages=FirstAverages(),
    )
