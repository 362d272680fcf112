"""A script's training as a `MistakeWatch` sees it under `supervisor run`, in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.data import dataloader

from supervisor.testing.mistake_check import Hooked


class HookedScript(Hooked):
    """With what is rarer: closures, hooks at tensors, loaders, weights taken out and put in."""

    def before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        super().before(optimizer, args, kwargs)
        closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
        return None if closure is None else ((args[0], self._seen(closure)), {})

    def _seen(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def evaluated() -> Any:
            earlier, self._depth = self._depth, 0
            try:
                return closure()
            finally:
                self._depth = earlier

        return evaluated

    def _patches(self) -> list[tuple[Any, str, Callable[[Any], Any]]]:
        return [
            *super()._patches(),
            (torch.Tensor, "register_hook", self._register_hook),
            (torch.Tensor, "retain_grad", self._register_hook),
            (dataloader._BaseDataLoaderIter, "__next__", self._batch),
            (Module, "state_dict", self._export),
            (Module, "load_state_dict", self._load),
        ]

    def _register_hook(self, original: Any) -> Any:
        def register(tensor: torch.Tensor, *args: Any) -> Any:
            self.is_hooked = True
            return original(tensor, *args)

        return register

    def _batch(self, original: Any) -> Any:
        def following(iterator: Any) -> Any:
            batch = original(iterator)
            if self.watch.is_on or self.watch.follows_loaders:
                self.watch.batch(iterator, batch)
            return batch

        return following

    def _export(self, original: Any) -> Any:
        def state_dict(module: Module, *args: Any, **kwargs: Any) -> Any:
            state = original(module, *args, **kwargs)
            if not args and "destination" not in kwargs and self.watch.is_enabled:
                self.watch.exported(module, state)
            return state

        return state_dict

    def _load(self, original: Any) -> Any:
        def load(module: Module, state: Mapping[str, Any], strict: bool = True, **more: Any) -> Any:
            if self.watch.is_enabled:
                self.watch.loaded(module, state, is_strict=strict)
            return original(module, state, strict, **more)

        return load
