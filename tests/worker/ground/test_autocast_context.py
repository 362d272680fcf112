"""Since when torch keeps casts of weights."""

from __future__ import annotations

import torch

from supervisor.worker.ground.autocast_context import AutocastContext


def test_a_context_of_one_step_has_no_casts_of_earlier_weights() -> None:
    context = AutocastContext()
    outside = context.has_older_casts(3)
    context.enters(3)
    with torch.autocast("cpu", torch.bfloat16):
        within = context.has_older_casts(3)

    assert (outside, within, context.has_older_casts(4)) == (False, False, False)


def test_a_context_around_several_steps_keeps_them_also_within_another_one() -> None:
    context = AutocastContext()
    context.enters(3)
    with torch.autocast("cpu", torch.bfloat16):
        context.enters(4)
        with torch.autocast("cpu", enabled=False):
            found = context.has_older_casts(4)
        kept = torch.is_autocast_cache_enabled()

    assert kept
    assert found


def test_without_a_cache_there_are_none() -> None:
    context = AutocastContext()
    context.enters(0)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        assert not context.has_older_casts(2)


def test_autocast_that_is_switched_on_without_a_context_keeps_them_for_ever() -> None:
    context = AutocastContext()
    before = context.has_older_casts(2)
    torch.set_autocast_enabled("cpu", True)
    try:
        assert context.has_older_casts(2)
        assert not context.has_older_casts(0)
    finally:
        torch.set_autocast_enabled("cpu", False)
        torch.clear_autocast_cache()
    assert not before
