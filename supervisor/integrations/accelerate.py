"""A tracker for Accelerate."""

from __future__ import annotations

from typing import Any

from accelerate.tracking import GeneralTracker

from supervisor.integrations.observing import observe_numbers


class AccelerateTracker(GeneralTracker):
    """Observes all that the script logs: ``Accelerator(log_with=AccelerateTracker())``.

    What `Accelerator.log` is given becomes part of the record of the step under way. Called on the
    main rank alone, as every tracker.
    """

    name = "supervisor"
    requires_logging_directory = False

    @property
    def tracker(self) -> None:
        """There is no object behind this tracker."""

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """The run directory has the script's arguments already."""

    def log(self, values: dict[str, Any], step: int | None = None, **more: Any) -> None:
        observe_numbers(values)
