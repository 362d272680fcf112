"""Hands over just before and just after each backward pass, for replays that look at one step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def hand_over_backward(
    before: Callable[[Any], None], after: Callable[[], None]
) -> Callable[[], None]:
    """Calls `before` with the roots of each backward pass, and `after` when it is over.

    Returns:
        What takes the patch off again.
    """
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        before(tensors)
        try:
            return original(tensors, *args, **kwargs)
        finally:
            after()

    def take_off() -> None:
        torch.autograd.backward = original

    torch.autograd.backward = backward
    return take_off
