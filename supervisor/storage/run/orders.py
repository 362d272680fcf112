"""The parent's orders to each new attempt's workers, in ``orders/attempt_<n>.json``."""

from __future__ import annotations

from supervisor.records import WorkerOrder
from supervisor.storage.files.record_file import load_record, save_record
from supervisor.storage.run.rundir import RunDirectory


def save_order(rundir: RunDirectory, order: WorkerOrder) -> None:
    """Writes the order of its attempt; called by the parent before it starts the workers.

    Raises:
        OSError: the disk refuses.
    """
    save_record(rundir.order(order.attempt), order)


def load_order(rundir: RunDirectory, attempt: int) -> WorkerOrder:
    """Returns the order of an attempt; called by each worker at its start.

    Raises:
        RunDirectoryError: it is missing or damaged.
    """
    help_text = "start workers with `supervisor run` or `supervisor resume`, not by hand"
    return load_record(rundir.order(attempt), WorkerOrder, help_text=help_text)
