"""How ranks enter: which one this is, and how all of them come to do the same."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.ranks import RankPlace
from supervisor.worker.core.boundaries import BoundarySchedule
from supervisor.worker.ranks.agreement import Agreement


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """A training in one process has one, too: it agrees with itself.

    Attributes:
        place: of this rank among all.
        agreement: by which ranks judge one record and arrive together.
        schedule: of boundaries; that of several ranks waits for what all have agreed on.
    """

    place: RankPlace
    agreement: Agreement
    schedule: BoundarySchedule
