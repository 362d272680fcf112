"""`SUPERVISOR_TRACE=1` prints the moments of the first steps and of an arrival, part by part.

For those who work on the supervisor. Without the variable nothing is wrapped, so nothing is paid.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from supervisor.worker.core.part import Part

VARIABLE = "SUPERVISOR_TRACE"
STEPS = 4
"""First steps that are printed; later ones look alike."""
_HOOKS = ("forward", "backward", "before_update", "after_update", "boundary")
_MOMENTS = (
    *("training_starts", "before_first_update", "at_boundary", "save", "before_state"),
    *("after_state", "goes_live", "ends"),
)
_ARRIVAL = frozenset({"before_state", "after_state", "goes_live", "ends"})


def trace(drivers: Sequence[object], parts: Sequence[Part], step: Callable[[], int]) -> None:
    """Called once, when all is built, on every rank.

    Args:
        drivers: the live one, and that of a replay.
        parts: in their order.
        step: steps done.
    """
    if os.environ.get(VARIABLE) != "1":
        return
    for driver in drivers:
        for name in _HOOKS:
            if hasattr(driver, name):
                _wrap(driver, name, type(driver).__name__, step)
    for part in parts:
        for name in _MOMENTS:
            if getattr(type(part), name) is not getattr(Part, name):
                _wrap(part, name, f"  {part.name}", step)


def _wrap(target: object, name: str, label: str, step: Callable[[], int]) -> None:
    call = getattr(target, name)

    @functools.wraps(call)
    def traced(*args: Any, **kwargs: Any) -> Any:
        if name in _ARRIVAL or step() < STEPS:
            of = f" {type(args[0]).__name__}" if name == "forward" else ""
            print(f"supervisor: trace: step {step()} {label}.{name}{of}", file=sys.stderr)
        return call(*args, **kwargs)

    object.__setattr__(target, name, traced)  # some parts are frozen
