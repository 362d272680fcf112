"""The face of training-supervisor: what a script or a notebook may call.

Importing it imports no torch; each name is fetched when it is first used. In a script that runs
without `supervisor run` every function is a plain pass-through.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from supervisor.version import __version__

_HOMES = {
    "SupervisorError": "supervisor.errors",
    "StepRecord": "supervisor.records",
    "Alert": "supervisor.records",
    "CrashRisk": "supervisor.records",
    "Decision": "supervisor.records",
    "read_steps": "supervisor.storage.steps.flight_reader",
    "observe": "supervisor.worker.run",
    "announce": "supervisor.worker.run",
    "track": "supervisor.worker.run",
    "batches": "supervisor.worker.run",
    "batch_size": "supervisor.worker.run",
    "on_alert": "supervisor.worker.run",
    "register_detector": "supervisor.worker.run",
    "register_mistake": "supervisor.worker.run",
    "Run": "supervisor.worker.run",
    "layer_diff": "supervisor.numerics.layer_diff",
    "analyze_tensor": "supervisor.numerics.quantization",
    "find_nonfinite": "supervisor.numerics.nan_locator",
    "gradient_flow": "supervisor.numerics.gradient_flow",
    "check_source": "supervisor.source_check.check",
    "launch": "supervisor.notebook.launch",
    "LaunchedRun": "supervisor.notebook.launch",
    "load_ipython_extension": "supervisor.notebook.magic",
}

if TYPE_CHECKING:  # what a type checker and an editor see of the names above
    from supervisor.errors import SupervisorError
    from supervisor.notebook.launch import LaunchedRun, launch
    from supervisor.notebook.magic import load_ipython_extension
    from supervisor.numerics.gradient_flow import gradient_flow
    from supervisor.numerics.layer_diff import layer_diff
    from supervisor.numerics.nan_locator import find_nonfinite
    from supervisor.numerics.quantization import analyze_tensor
    from supervisor.records import Alert, CrashRisk, Decision, StepRecord
    from supervisor.source_check.check import check_source
    from supervisor.storage.steps.flight_reader import read_steps
    from supervisor.worker.run import (
        Run,
        announce,
        batch_size,
        batches,
        observe,
        on_alert,
        register_detector,
        register_mistake,
        track,
    )

__all__ = [
    "Alert",
    "CrashRisk",
    "Decision",
    "LaunchedRun",
    "Run",
    "StepRecord",
    "SupervisorError",
    "__version__",
    "analyze_tensor",
    "announce",
    "batch_size",
    "batches",
    "check_source",
    "find_nonfinite",
    "gradient_flow",
    "launch",
    "layer_diff",
    "load_ipython_extension",
    "observe",
    "on_alert",
    "read_steps",
    "register_detector",
    "register_mistake",
    "track",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'supervisor' has no attribute '{name}'")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return __all__
