"""Temporary hooks on all modules of a model."""

from __future__ import annotations

import abc
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from torch import nn

from supervisor.numerics.forward.model_call import watched_modules

Entered = TypeVar("Entered", bound="ModuleHooks")


class ModuleHooks(abc.ABC):
    """A context in which calls and returns of every module are reported.

    Leaves no hook behind; the model's own hooks run before ours.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._handles: list[Any] = []

    @abc.abstractmethod
    def _entering(self, path: str) -> Callable[..., None]:
        """Returns the hook ``(module, args, kwargs)`` of the module at `path` for its calls."""

    @abc.abstractmethod
    def _leaving(self, path: str) -> Callable[..., None]:
        """Returns the hook ``(module, args, output)`` of the module at `path` for its returns."""

    def __enter__(self: Entered) -> Entered:
        for path, module in watched_modules(self._model):
            self._handles += [
                module.register_forward_pre_hook(self._entering(path), with_kwargs=True),
                module.register_forward_hook(self._leaving(path)),
            ]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.remove()
