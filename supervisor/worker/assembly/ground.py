"""What nearly every part of the worker writes to or reads."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.actions.controls import Controls
from supervisor.risk_lines import RiskLines
from supervisor.storage.journal.journal import Journal, SilentJournal
from supervisor.training_state.registry import Registry
from supervisor.worker.assembly.task import Task
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
