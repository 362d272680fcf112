"""Whether the script tells Kubeflow Trainer of its progress itself: then the parent does not."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping

from supervisor.codes import Found
from supervisor.events.state_events import StateFound
from supervisor.storage.journal.journal import Journal
from supervisor.worker.core.part import ALWAYS, Part


class OwnReports(Part):
    """Looks once, after the first step: what reports has been imported by then."""

    name = "own reports"

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._has_looked = False

    def next_boundary(self, step: int) -> tuple[float, float]:
        return (math.inf, math.inf) if self._has_looked else ALWAYS

    def at_boundary(self, step: int) -> None:
        if not self._has_looked:
            self._has_looked = True
            if by := reporter(sys.modules):
                self._journal.write(StateFound(step=step, found=Found.REPORTS_ITSELF, detail=by))


def reporter(modules: Mapping[str, object]) -> str:
    """Returns the library that reports; empty without one.

    Transformers' Trainer has a callback that registers itself where the endpoint is named.
    """
    if "kubeflow.trainer" in modules:
        return "kubeflow"
    integrations = modules.get("transformers.integrations.integration_utils")
    if "transformers.trainer" in modules and hasattr(integrations, "KubeflowCallback"):
        return "transformers"
    return ""
