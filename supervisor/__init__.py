"""The face of training-supervisor: what a script or a notebook may call.

Importing it imports no torch; each name is fetched when it is first used. In a script that runs
without `supervisor run` every function is a plain pass-through.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from supervisor.version import __version__

_HOMES = {
    "SupervisorError": "supervisor.errors",
    "StepRecord": "supervisor.records",
    "Alert": "supervisor.records",
    "CrashRisk": "supervisor.records",
    "Decision": "supervisor.records",
    "read_steps": "supervisor.storage.flight_recorder",
    "observe": "supervisor.worker.run",
    "announce": "supervisor.worker.run",
    "track": "supervisor.worker.run",
    "batches": "supervisor.worker.run",
    "batch_size": "supervisor.worker.run",
    "on_alert": "supervisor.worker.run",
    "register_detector": "supervisor.worker.run",
    "Run": "supervisor.worker.run",
    "layer_diff": "supervisor.numerics.layer_diff",
    "analyze_tensor": "supervisor.numerics.quantization",
    "find_nonfinite": "supervisor.numerics.nan_locator",
    "gradient_flow": "supervisor.numerics.gradient_flow",
    "check_source": "supervisor.source_check.check",
}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'supervisor' has no attribute '{name}'")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return __all__
