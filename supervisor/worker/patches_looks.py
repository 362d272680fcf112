"""Torch as it is at a step that is looked at: modules and attention tell what they put out, and
loaders how long they were waited for.

All of it is on for the forward and backward of such a step and comes off before its update. Modules
are seen by the hooks that torch has for all modules; nothing is set on `Module` or `Tensor`: each
such change makes Python forget what it has cached about the class, and from Python 3.13 on for good
after a thousand of them.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.nn import Module, functional
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.data import dataloader

from supervisor.worker.switch import Switch


class Looker(Protocol):
    """Whoever looks; called in the training's own thread, inside of a region, without gradients."""

    def saw_module(self, module: Module, output: Any, *, is_root: bool) -> None: ...
    def waited(self, seconds: float) -> None: ...
    def saw_scores(self, module: Module, scores: Any) -> None: ...
    def saw_product(self, module: Module, query: Any, key: Any, given: dict[str, Any]) -> None: ...


def look_at_modules(looker: Looker, switch: Switch) -> Callable[[], None]:
    """Puts the patches on.

    Returns:
        What takes them off again.
    """
    inside: list[Module] = []
    thread = threading.get_ident()

    def may_look() -> bool:
        return (
            switch.depth > 0
            and torch.is_grad_enabled()
            and not torch._C._len_torch_function_stack()
            and _get_current_dispatch_mode() is None
            and threading.get_ident() == thread
        )

    def entered(module: Module, args: Any) -> None:
        if threading.get_ident() == thread:
            inside.append(module)

    def left(module: Module, args: Any, output: Any) -> None:
        if threading.get_ident() != thread:
            return
        while inside and inside.pop() is not module:
            pass  # an inner forward raised, and the script went on
        if may_look():
            with torch.no_grad():
                looker.saw_module(module, output, is_root=not inside)

    def on_product(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            if inside and not torch.compiler.is_compiling() and may_look():
                names = ("attn_mask", "dropout_p", "is_causal")
                given = {**dict(zip(names, args, strict=False)), **kwargs}
                with torch.no_grad():
                    looker.saw_product(inside[-1], query, key, given)
            return original(query, key, value, *args, **kwargs)

        return attention

    def on_softmax(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def softmax(scores: Any, *args: Any, **kwargs: Any) -> Any:
            if inside and not torch.compiler.is_compiling() and may_look():
                dim = kwargs.get("dim", args[0] if args else None)
                if isinstance(scores, torch.Tensor) and dim in (-1, scores.dim() - 1):
                    with torch.no_grad():
                        looker.saw_scores(inside[-1], scores)
            return original(scores, *args, **kwargs)

        return softmax

    next_batch = dataloader._BaseDataLoaderIter.__next__

    def __next__(self: Any) -> Any:
        started = time.perf_counter()
        try:
            return next_batch(self)
        finally:
            looker.waited(time.perf_counter() - started)

    product, function = functional.scaled_dot_product_attention, torch.softmax
    by_functional = functional.softmax
    functional.scaled_dot_product_attention = on_product(product)
    torch.softmax = on_softmax(function)
    functional.softmax = on_softmax(by_functional)
    dataloader._BaseDataLoaderIter.__next__ = __next__  # type: ignore[method-assign]
    hooks = (register_module_forward_pre_hook(entered), register_module_forward_hook(left))

    def take_off() -> None:
        for hook in hooks:
            hook.remove()
        dataloader._BaseDataLoaderIter.__next__ = next_batch  # type: ignore[method-assign]
        functional.scaled_dot_product_attention = product
        torch.softmax = function
        functional.softmax = by_functional

    return take_off
