"""Garbage waits while much is made that is kept, and is collected as before afterwards."""

from __future__ import annotations

import gc

import pytest
import torch

from supervisor.training_state.held_values import find_held
from supervisor.uncollected import uncollected


def test_nothing_is_collected_within_and_all_is_as_before_after_an_error() -> None:
    was_on = []

    @uncollected()
    def fails() -> None:
        was_on.append(gc.isenabled())
        raise KeyError

    with pytest.raises(KeyError):
        fails()

    assert (was_on, gc.isenabled()) == ([False], True)


def test_a_script_that_has_switched_collections_off_keeps_them_off() -> None:
    gc.disable()
    try:
        with uncollected():
            pass

        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_look_at_many_variables_sets_off_no_collection() -> None:
    collections = []
    gc.callbacks.append(lambda phase, info: collections.append(phase))
    tensors = [{"t": torch.zeros(1)} for _ in range(500)]
    threshold = gc.get_threshold()
    gc.collect()
    gc.set_threshold(100)
    collections.clear()
    try:
        find_held({"main": {"tensors": tensors}}, set())
        gc.disable()
    finally:
        gc.callbacks.pop()
        gc.set_threshold(*threshold)
        gc.enable()

    assert collections.count("start") <= 1  # the one that waited
