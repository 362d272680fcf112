"""Where a script takes weights out of a module and puts them in."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from torch.nn import Module

from supervisor.worker.core.call_state import CallState, outside_dynamo
from supervisor.worker.mistakes.watch import MistakeWatch


def watch_weights(call_state: CallState, watch: MistakeWatch) -> None:
    """Patches for the rest of this process's life. What a replay does is not told."""
    export: Callable[..., Any] = Module.state_dict
    load: Callable[..., Any] = Module.load_state_dict

    @outside_dynamo
    @functools.wraps(export)
    def state_dict(self: Module, *args: Any, **kwargs: Any) -> Any:
        state = export(self, *args, **kwargs)
        if not args and "destination" not in kwargs and _is_told():
            with call_state.region():
                watch.exported(self, state)
        return state

    @outside_dynamo
    @functools.wraps(load)
    def load_state_dict(
        self: Module, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        given = {**dict(zip(("strict", "assign"), args, strict=False)), **kwargs}
        if not given.get("assign") and isinstance(state_dict, Mapping) and _is_told():
            with call_state.region():
                watch.loaded(self, state_dict, is_strict=bool(given.get("strict", True)))
        return load(self, state_dict, *args, **kwargs)

    def _is_told() -> bool:
        return watch.is_enabled and call_state.is_ours() and not call_state.replaying

    Module.state_dict = state_dict  # type: ignore[method-assign]
    Module.load_state_dict = load_state_dict  # type: ignore[method-assign]
