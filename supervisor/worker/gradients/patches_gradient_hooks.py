"""What a script asks of a backward: hooks at gradients, and the gradients of values between."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from supervisor.training_state.registry import GradientHook
from supervisor.training_state.script_state.place import is_torchs
from supervisor.worker.core.call_state import outside_dynamo, run_plainly
from supervisor.worker.core.part import Sides
from supervisor.worker.core.training_hooks import Seen
from supervisor.worker.gradients.called_hooks import GradientHooks


def watch_gradient_hooks(session: Seen, hooks: Sides[GradientHooks]) -> None:
    """Patches for the rest of this process's life. Called once, after `instrument`."""
    _patch_retain_grad(session)
    _patch_register_hook(session)
    original = torch.Tensor.register_post_accumulate_grad_hook
    register: Callable[[torch.Tensor, Any], Any] = original
    call_state = session.call_state

    @outside_dynamo
    def called(hook: GradientHook) -> None:
        if call_state.active:
            hooks.now.called(hook)
        else:
            hook.run()

    @run_plainly
    @functools.wraps(original)
    def register_post_accumulate_grad_hook(self: torch.Tensor, hook: Any) -> Any:
        is_seen = isinstance(hook, GradientHook)  # torch asks again for a subclass of tensors
        if is_seen or is_dynamo_compiling() or not call_state.is_ours() or is_torchs(hook):
            return register(self, hook)
        found = GradientHook(hook, self, called)
        handle = register(self, found)
        session.object_found("gradient_hook", found)
        return handle

    torch.Tensor.register_post_accumulate_grad_hook = register_post_accumulate_grad_hook  # type: ignore[method-assign]


def _patch_retain_grad(session: Seen) -> None:
    original: Callable[[torch.Tensor], None] = torch.Tensor.retain_grad
    call_state = session.call_state

    @run_plainly
    @functools.wraps(original)
    def retain_grad(self: torch.Tensor) -> None:
        original(self)
        call_state.has_tensor_hooks = True
        if not is_dynamo_compiling() and call_state.is_ours():
            session.object_found("retained", self)

    torch.Tensor.retain_grad = retain_grad  # type: ignore[method-assign, assignment]


def _patch_register_hook(session: Seen) -> None:
    """No backward of ours may call what the script hangs on a tensor, so it is noted."""
    original: Callable[[torch.Tensor, Any], Any] = torch.Tensor.register_hook
    call_state = session.call_state

    @run_plainly
    @functools.wraps(original)
    def register_hook(self: torch.Tensor, hook: Any) -> Any:
        call_state.has_tensor_hooks = True
        return original(self, hook)

    torch.Tensor.register_hook = register_hook  # type: ignore[method-assign]
