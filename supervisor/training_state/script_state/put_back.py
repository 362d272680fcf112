"""Puts what differs back from a checkpoint: numbers, strings, containers, random generators."""

from __future__ import annotations

import array
import ast
import collections
import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from supervisor.training_state.plain_form import as_in_code
from supervisor.training_state.script_state.facts import (
    holds_generator_state,
    is_generator,
    put_generator_back,
    same_as,
    value_of,
    wants_gradient,
)
from supervisor.training_state.script_state.inside_containers import (
    added_in_order,
    is_plain,
    is_shared,
    share_again,
    shared,
)
from supervisor.training_state.script_state.place import Place
from supervisor.training_state.script_state.script_state import Difference
from supervisor.training_state.script_state.single_values import member_of, put_memory_back

_EMPTY = re.compile(r"(list|dict|deque|OrderedDict) of \d+( by \w+)?$")
_NEW: dict[str, Callable[[], Any]] = {
    "list": list,
    "dict": dict,
    "deque": collections.deque,
    "OrderedDict": collections.OrderedDict,
}
_OF_ITERATOR = re.compile(r"\.position\[\d+\]$")
"""What an iterator goes over and where it stands: the one is wrong without the other."""
_STEP = re.compile(r"(?:\.(?P<name>\w+)|\[(?P<key>[^\[\]]+|'[^']*')\])$")


def put_back(
    found: Collection[Difference], places: Mapping[str, Place], held: Mapping[str, Any]
) -> list[str]:
    """Puts back what can be; returns the paths of what was changed.

    Called on arrival, several times: what lies within a container that was missing can only be put
    back once that is there.

    Args:
        found: differences of the script state.
        places: the live ones, by path.
        held: path → tensor or array of the checkpoint.
    """
    changed = []
    strangers = tuple(_strangers(found, places))
    for one in found:
        if f"{one.path}.".startswith(strangers) or f"{one.path}[".startswith(strangers):
            continue
        with contextlib.suppress(Exception):  # what did not work is found by the next comparison
            if not _OF_ITERATOR.search(one.path) and _put(one, places, held):
                changed.append(one.path)
    return changed


def _strangers(found: Iterable[Difference], places: Mapping[str, Place]) -> Iterator[str]:
    """Places that hold another object than the recorded one: what lies below belongs to that."""
    for one in found:
        paths = [path for path in map(same_as, (one.recorded or "", one.live or "")) if path]
        both = [places[path].value for path in (one.path, *paths) if path in places]
        if paths and not all(map(_is_value, both)):
            for path in (one.path, *paths):
                yield from (f"{path}.", f"{path}[")


def _is_value(value: Any) -> bool:
    """Whether all that it is can be put back."""
    return isinstance(value, (torch.Tensor, np.ndarray)) or is_plain(value)


def _put(one: Difference, places: Mapping[str, Place], held: Mapping[str, Any]) -> bool:
    place = places.get(one.path)
    if is_shared(one.recorded) or is_shared(one.live):
        if share_again(one.path, one.recorded, places):
            return True
        return is_shared(one.recorded) and _rebuild(
            one.path, shared(one.recorded or "", places), places
        )
    if one.recorded is None:
        return _remove(one.path, places)
    same = same_as(one.recorded)
    value = places[same].value if same else None
    if place is None:
        return _add(one.path, value if same else _new_value(one, held), places)
    if same or place.same_as:
        return _replace(place, value if same else _new_value(one, held))
    if _EMPTY.match(one.recorded) and type(place.value).__name__ == one.recorded.split()[0]:
        return False  # another order, or other objects in it
    if is_generator(place.value) and holds_generator_state(one.recorded):
        put_generator_back(place.value, one.recorded)
        return True
    if put_memory_back(place.value, one.recorded):
        return True
    if one.path in held and isinstance(place.value, (torch.Tensor, np.ndarray)):
        # `held_values.put_back` writes its content
        return isinstance(place.value, torch.Tensor) and _put_flag(place, one)
    if isinstance(place.value, torch.Tensor) and _put_flag(place, one):
        return True
    member = member_of(one.recorded, place.value)
    if member is not None:
        return _replace(place, member)
    value = _new_value(one, held, place.value)
    filled = _fill(place.value, value) or _replace(place, value)
    return filled or _rebuild(one.path, value, places)


def _replace(place: Place, value: Any) -> bool:
    if place.replace is None:
        return False
    place.replace(value)
    return True


def _rebuild(path: str, value: Any, places: Mapping[str, Place]) -> bool:
    """Puts another tuple, with `value` in it, in the place of the one to which `path` leads."""
    parent, _, key = _last_step(path, places)
    if parent is None or not isinstance(parent.value, tuple) or not isinstance(key, int):
        return False
    kind, items = type(parent.value), [*parent.value]
    items[key] = value
    made: Any = tuple if kind is tuple else getattr(kind, "_make", None)
    if made is None:
        return False
    parent.value = made(items)
    return _replace(parent, parent.value) or _rebuild(parent.path, parent.value, places)


def _put_flag(place: Place, one: Difference) -> bool:
    """Gives a live tensor the recorded `requires_grad`, in place where that is possible."""
    assert one.recorded is not None
    live, wanted = place.value, wants_gradient(one.recorded)
    if wanted is None or live.requires_grad == wanted:
        return False
    if wanted or live.is_leaf:
        live.requires_grad_(wanted)
    elif not live._is_view():
        live.detach_()
    elif place.replace is not None:
        place.replace(live.detach())
    return True


def _new_value(one: Difference, held: Mapping[str, Any], live: Any = None) -> Any:
    """What is to lie there, in the place of `live`; of containers of objects an empty one, whose
    items come later.

    Raises:
        CannotPutBack: the checkpoint does not hold it.
    """
    assert one.recorded is not None
    if one.path in held:
        saved = held[one.path]
        if not isinstance(saved, torch.Tensor):
            return saved.copy()
        return saved.clone().requires_grad_(bool(wants_gradient(one.recorded)))
    empty = _EMPTY.match(one.recorded)
    if empty:
        return _NEW[empty[1]]()
    return as_in_code(value_of(one.recorded, live))


def _fill(live: Any, value: Any) -> bool:
    """Gives a live container new content, so that all who hold it see that."""
    if type(live) is not type(value):
        return False
    if isinstance(live, (list, bytearray, array.array)):
        live[:] = value
    elif isinstance(live, dict):
        live.clear()
        live.update(value)
    elif isinstance(live, set):
        live.clear()
        live.update(added_in_order(value))
    elif isinstance(live, collections.deque) and live.maxlen == value.maxlen:
        live.clear()
        live.extend(value)
    else:
        return False
    return True


def _add(path: str, value: Any, places: Mapping[str, Place]) -> bool:
    parent, name, key = _last_step(path, places)
    if parent is None:
        return False
    if name is not None and hasattr(parent.value, "__dict__"):
        object.__setattr__(parent.value, name, value)
        return True
    if isinstance(parent.value, (list, collections.deque)) and key == len(parent.value):
        parent.value.append(value)
        return True
    if isinstance(parent.value, dict) and key is not None:
        parent.value[key] = value
        return True
    return False


def _remove(path: str, places: Mapping[str, Place]) -> bool:
    parent, name, key = _last_step(path, places)
    if parent is None:
        return False
    if name is not None and name in getattr(parent.value, "__dict__", {}):
        object.__delattr__(parent.value, name)
        return True
    if isinstance(parent.value, (list, collections.deque)) and isinstance(key, int):
        while len(parent.value) > key:
            parent.value.pop()
        return True
    if isinstance(parent.value, dict) and key in parent.value:
        del parent.value[key]
        return True
    return False


def _last_step(path: str, places: Mapping[str, Place]) -> tuple[Place | None, str | None, Any]:
    """The live place in which a path's last part lies, and its name or key there."""
    match = _STEP.search(path)
    if match is None:
        return None, None, None
    parent = places.get(path[: match.start()])
    if match["key"] is None:
        return parent, match["name"], None
    try:
        return parent, None, as_in_code(ast.literal_eval(match["key"]))
    except (ValueError, SyntaxError):  # an object as the key
        return None, None, None
