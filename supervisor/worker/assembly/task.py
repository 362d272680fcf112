"""Which worker this is, and what it was told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from supervisor.config import load_resolved_config, load_resolved_policy
from supervisor.ranks import RankPlace
from supervisor.records import WorkerOrder
from supervisor.settings import PolicySettings, RunSettings
from supervisor.storage.run.orders import load_order
from supervisor.storage.run.rundir import RunDirectory


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
