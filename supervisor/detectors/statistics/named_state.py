"""The state of an object whose attributes change from step to step."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar


class NamedState:
    """Keeps the attributes that `_state` names: plain values, lists or deques of such, or objects
    with `state_dict` and `load_state_dict`."""

    __slots__ = ()
    _state: ClassVar[tuple[str, ...]] = ()

    def state_dict(self) -> dict[str, Any]:
        """Returns what `load_state_dict` of an equal object needs to continue; JSON-able."""
        return {name: _pack(getattr(self, name)) for name in self._state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from `state`. Raises KeyError if it is another object's."""
        for name in self._state:
            setattr(self, name, _unpack(getattr(self, name), state[name]))


def _pack(value: Any) -> Any:
    if hasattr(value, "state_dict"):
        return value.state_dict()
    return list(value) if isinstance(value, deque) else copy.copy(value)


def _unpack(current: Any, state: Any) -> Any:
    if hasattr(current, "load_state_dict"):
        current.load_state_dict(state)
        return current
    if isinstance(current, deque):
        return deque(state, maxlen=current.maxlen)
    return copy.copy(state)
