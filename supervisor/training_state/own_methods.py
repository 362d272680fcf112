"""Parts of a state that objects load by methods of their own: schedules, averages, extra states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from supervisor.errors import CheckpointError, StateTorn, pass_on
from supervisor.training_state.comparison import first_difference
from supervisor.training_state.plain_form import from_plain, to_plain
from supervisor.training_state.snapshot import copy_state


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMethod:
    """An object that loads its own state.

    Attributes:
        name: for messages.
        saved: the state, in plain form.
        load: takes a state.
        give: returns the object's present state.
    """

    name: str
    saved: Any
    load: Callable[[Any], Any]
    give: Callable[[], Any]


def load_all(methods: Sequence[OwnMethod]) -> None:
    """Loads every state or none: if a method raises, the others are taken back.

    Called before the first tensor is written, since a user's method may do anything.

    Raises:
        CheckpointError: one raised; every object has its former state.
        StateTorn: one raised, and one could not be taken back.
    """
    before = [_state_of(method) for method in methods]
    for done, method in enumerate(methods, start=1):
        try:
            method.load(_built(method.saved))
        except BaseException as error:
            pass_on(error)
            text = f"{method.name}: {type(error).__name__}: {error}"
            _take_back(methods[:done], before[:done], text)
            raise CheckpointError(f"{text}: nothing was changed") from error


def _state_of(method: OwnMethod) -> Any:
    """Returns a copy in plain form; None if the object cannot give one."""
    left_out: list[str] = []
    try:
        plain = copy_state({"now": to_plain(method.give(), method.name, left_out)})["now"]
    except BaseException as error:  # the user's own method
        pass_on(error)
        return None
    return None if left_out else plain


def _take_back(methods: Sequence[OwnMethod], before: Sequence[Any], text: str) -> None:
    for method, state in reversed(list(zip(methods, before, strict=True))):
        if state is None:
            raise StateTorn(f"{text}: and what {method.name} was before is not known")
        if first_difference({"": state}, {"": _state_of(method)}) is None:
            continue
        try:
            method.load(_built(state))
        except BaseException as error:
            pass_on(error)
            raise StateTorn(f"{text}: {method.name} could not be taken back: {error}") from error


def _built(plain: Any) -> Any:
    """Copies tensors, so that the object shares no memory with the saved state."""
    return _without_sharing(from_plain(plain))


def _without_sharing(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if type(value) in (list, tuple):
        return type(value)(_without_sharing(item) for item in value)
    if type(value) is dict:
        return {key: _without_sharing(item) for key, item in value.items()}
    return value
