"""Torch as it is at a step that is looked at: modules and attention tell what they put out, and
loaders how long they were waited for.

On for the forward and backward of such a step, off before its update. Nothing is set on `Module` or
`Tensor`: from Python 3.13 on a class that was changed a thousand times is never cached again.
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

from supervisor.worker.core.call_state import CallState


class Sampling(Protocol):
    """Whoever looks; called in the training's own thread, inside of a region, without gradients."""

    def saw_module(self, module: Module, output: Any, *, is_root: bool) -> None: ...
    def waited(self, seconds: float) -> None: ...
    def saw_scores(self, module: Module, scores: Any) -> None: ...
    def saw_product(self, module: Module, query: Any, key: Any, given: dict[str, Any]) -> None: ...


def sample_modules(sampling: Sampling, call_state: CallState) -> Callable[[], None]:
    """Puts the patches on.

    Returns:
        What takes them off again.
    """
    sight = _Sight(sampling, call_state)
    product, softmax = functional.scaled_dot_product_attention, torch.softmax
    by_functional = functional.softmax
    next_batch = dataloader._BaseDataLoaderIter.__next__
    functional.scaled_dot_product_attention = sight.on_product(product)
    torch.softmax = sight.on_softmax(softmax)
    functional.softmax = sight.on_softmax(by_functional)
    dataloader._BaseDataLoaderIter.__next__ = _timed(next_batch, sampling)  # type: ignore[method-assign]
    hooks = (
        register_module_forward_pre_hook(sight.entered),
        register_module_forward_hook(sight.left),
    )

    def take_off() -> None:
        for hook in hooks:
            hook.remove()
        dataloader._BaseDataLoaderIter.__next__ = next_batch  # type: ignore[method-assign]
        functional.scaled_dot_product_attention = product
        torch.softmax = softmax
        functional.softmax = by_functional

    return take_off


class _Sight:
    """Follows which modules the training's thread is in, and tells the looker what they do."""

    def __init__(self, sampling: Sampling, call_state: CallState) -> None:
        self._sampling = sampling
        self._call_state = call_state
        self._inside: list[Module] = []
        self._thread = threading.get_ident()

    def entered(self, module: Module, args: Any) -> None:
        if threading.get_ident() == self._thread:
            self._inside.append(module)

    def left(self, module: Module, args: Any, output: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        while self._inside and self._inside.pop() is not module:
            pass  # an inner forward raised, and the script went on
        if self._may_sample():
            with torch.no_grad():
                self._sampling.saw_module(module, output, is_root=not self._inside)

    def on_product(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            if self._may_sample_inside():
                names = ("attn_mask", "dropout_p", "is_causal")
                given = {**dict(zip(names, args, strict=False)), **kwargs}
                with torch.no_grad():
                    self._sampling.saw_product(self._inside[-1], query, key, given)
            return original(query, key, value, *args, **kwargs)

        return attention

    def on_softmax(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def softmax(scores: Any, *args: Any, **kwargs: Any) -> Any:
            if self._may_sample_inside():
                dim = kwargs.get("dim", args[0] if args else None)
                if isinstance(scores, torch.Tensor) and dim in (-1, scores.dim() - 1):
                    with torch.no_grad():
                        self._sampling.saw_scores(self._inside[-1], scores)
            return original(scores, *args, **kwargs)

        return softmax

    def _may_sample_inside(self) -> bool:
        return not torch.compiler.is_compiling() and bool(self._inside) and self._may_sample()

    def _may_sample(self) -> bool:
        return (
            self._call_state.depth > 0
            and torch.is_grad_enabled()
            and not torch._C._len_torch_function_stack()
            and _get_current_dispatch_mode() is None
            and threading.get_ident() == self._thread
        )


def _timed(next_batch: Callable[..., Any], sampling: Sampling) -> Callable[..., Any]:
    def __next__(self: Any) -> Any:
        started = time.perf_counter()
        try:
            return next_batch(self)
        finally:
            sampling.waited(time.perf_counter() - started)

    return __next__
