"""Plain attributes of modules that `forward` may change: call counters, decay factors, histories.

They are in no ``state_dict``, and a fast-forward does not run `forward`, so they come from the
checkpoint.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from supervisor.training_state.model_state import Parts, named_parts
from supervisor.training_state.plain_form import from_plain, to_plain

_ITEMS_LIMIT = 1000
_INTERNAL = frozenset(vars(nn.Module()))
_PLAIN_ALREADY = frozenset({bool, int, float, str, type(None)})
_SCALARS = (bool, int, float, str, complex, type(None))


def module_attributes(module: nn.Module, parts: Parts | None = None) -> dict[str, Any]:
    """Returns ``submodule:attribute`` → plain form, for scalars and short containers of them.

    Args:
        parts: `named_parts`, where they are known already.
    """
    left_out: list[str] = []
    places = _places(parts or named_parts(module))
    return {
        path: owner[name]
        if type(owner[name]) in _PLAIN_ALREADY
        else to_plain(owner[name], path, left_out)
        for path, owner, name in places
    }


def put_back_attributes(module: nn.Module, saved: Mapping[str, Any]) -> None:
    """Sets attributes from `module_attributes`; lists, deques and dicts are changed in place.

    Equal values are not replaced: pickled files of the script show which objects are shared.
    """
    for path, owner, name in list(_places(named_parts(module))):
        if path not in saved:
            continue
        value, live = from_plain(saved[path]), owner[name]
        if type(live) is type(value) and repr(live) == repr(value):  # tells -0.0 from 0.0
            continue
        if isinstance(live, list) and isinstance(value, list):
            live[:] = value
        elif isinstance(live, dict) and isinstance(value, dict):
            live.clear()
            live.update(value)
        elif isinstance(live, collections.deque) and isinstance(value, collections.deque):
            live.clear()
            live.extend(value)
        else:
            owner[name] = value


def _places(parts: Parts) -> Iterator[tuple[str, dict[str, Any], str]]:
    for path, part in parts:
        own = vars(part)
        for name in sorted(own.keys() - _INTERNAL):
            if _is_plain(own[name]):
                yield f"{path}:{name}", own, name


def _is_plain(value: Any) -> bool:
    if type(value) in _SCALARS:
        return True
    if type(value) in (list, tuple, collections.deque):
        return len(value) <= _ITEMS_LIMIT and all(type(item) in _SCALARS for item in value)
    if type(value) is dict:
        return len(value) <= _ITEMS_LIMIT and all(
            type(key) in _SCALARS and type(item) in _SCALARS for key, item in value.items()
        )
    return False
