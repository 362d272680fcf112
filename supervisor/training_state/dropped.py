"""Objects that the script has dropped, and that only one side still has.

When an object goes to which nothing refers any more is up to the garbage collector: an optimizer
and its scheduler refer to each other. A checkpoint may hold one that the script had dropped long
before, and so may the process that comes back to it.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any

from supervisor.training_state.registry import Registry
from supervisor.training_state.script_state.reach import Reach

_BY_NAME = (
    *("models", "buffers", "unwritten", "modes", "attributes", "extra", "optimizers"),
    *("schedulers", "scalers", "stages", "grads", "gradient_places"),
)
"""Parts of a state whose keys are names of the registry's."""


def without_dropped(registry: Registry, saved: dict[str, Any], frames: Any) -> dict[str, Any]:
    """Returns `saved` without what the script has dropped, and has the registry forget the same.

    Called before a state is put back where a replay of the very run has arrived: there, what one
    side has seen go, no variable of the script's leads to on the other.

    Args:
        registry: of the live objects.
        saved: the state of the checkpoint.
        frames: see `Reach`.
    """
    gone: set[str] = set()
    reached: set[int] | None = None
    for kind in ("models", "optimizers", "schedulers", "scalers"):
        names = saved.get(kind, {}).keys()
        if getattr(registry, kind).keys() == names:
            continue
        gc.collect()
        live = getattr(registry, kind)
        missing, more = names - live.keys(), live.keys() - names
        if missing and not more:
            gone |= {name for name in missing if registry.has_given(name)}
        elif more and not missing:
            if reached is None:
                reached = {id(place.value) for place in Reach(frames)}
            registry.forget(name for name in more if id(live[name]) not in reached)
    return _without(saved, gone) if gone else saved


def _without(saved: dict[str, Any], gone: set[str]) -> dict[str, Any]:
    def rest(part: Any) -> Any:
        if not isinstance(part, Mapping):
            return part
        return {name: value for name, value in part.items() if name not in gone}

    kept = {part: rest(value) if part in _BY_NAME else value for part, value in saved.items()}
    for part in ("owners", "stages"):  # these name others within
        if part in kept:
            kept[part] = {name: rest(value) for name, value in kept[part].items()}
    if "owners" in kept and len(kept["models"]) == 1:  # `find_owners` looks for no path of it
        kept["owners"]["models"] = dict.fromkeys(kept["models"], "")
    return kept
