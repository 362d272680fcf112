"""The patch by which it is seen what each batch has added to running means and variances."""

from __future__ import annotations

import functools
from threading import get_ident
from typing import Any, Protocol

import torch
from torch.nn import functional

from supervisor.worker.core.breakers import Breaker
from supervisor.worker.core.call_state import CallState


class Watch(Protocol):
    """Whoever keeps them.

    Attributes:
        is_on: it wants them.
    """

    is_on: bool

    def saw(
        self,
        mean: torch.Tensor,
        variance: torch.Tensor,
        given: torch.Tensor,
        output: torch.Tensor,
        momentum: float,
        eps: float,
    ) -> None:
        """Called within forwards, at every layer that normalises."""


def watch_normalisation(call_state: CallState, watch: Watch, part: Breaker) -> None:
    """Patches torch for the rest of this process's life.

    Args:
        part: keeps errors of `watch` away from the script.
    """
    original = functional.batch_norm
    saw, transforms = watch.saw, torch._C._functorch.peek_interpreter_stack

    @functools.wraps(original)
    def batch_norm(
        input: torch.Tensor,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Any:
        output = original(input, running_mean, running_var, weight, bias, training, momentum, eps)
        if (
            training
            and watch.is_on
            and call_state.active
            and not call_state.replaying
            and type(running_mean) is type(running_var) is torch.Tensor
            and part.is_on
            and get_ident() == call_state.thread
            and transforms() is None
        ):
            try:
                saw(running_mean, running_var, input, output, momentum, eps)
            except BaseException as error:
                part.caught(error)
        return output

    # Whoever compiles this, torch.compile or torch.jit, compiles torch's own function instead; the
    # mark is that of `torch.jit.script_if_tracing`, which both know.
    marked: Any = batch_norm
    marked.__script_if_tracing_wrapper = True
    marked.__original_fn = original
    functional.batch_norm = batch_norm
