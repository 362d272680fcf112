"""Raised when another host has taken the run over with ``--force``."""

from __future__ import annotations

from supervisor.storage.run.lease import Lease
from supervisor.storage.run.lease_holder import Holder


class RunTakenOver(Exception):
    """Ends the outer loop at once; the run itself goes on elsewhere."""

    def __init__(self, holder: Holder) -> None:
        super().__init__(f"{holder} has taken this run over: ended here, nothing more is written")


def check_lease(lease: Lease) -> None:
    """Called before anything is written or started.

    Raises:
        RunTakenOver: the run is no longer ours.
    """
    if lease.taken_by is not None:
        raise RunTakenOver(lease.taken_by)
