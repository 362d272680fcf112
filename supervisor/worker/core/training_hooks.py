"""The moments of a training at which the patched functions of torch hand over.

`Live` answers them while the training runs, `Replay` while it is being replayed. All are
called in the training's own thread, on every rank, outside of any other region.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import torch
from torch.nn import Module
from torch.optim import Optimizer

from supervisor.worker.core.call_state import CallState
from supervisor.worker.core.part import Sides

Call: TypeAlias = Callable[[], Any]


class TrainingHooks(ABC):
    """What happens at each moment; every method returns what the user's code gets.

    What a subject's own patches ask (reads, loading, gradient hooks, generators) is answered by its
    own `Sides`, not here.
    """

    @abstractmethod
    def forward(
        self, module: Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], call: Call
    ) -> Any:
        """An outermost call of a module with parameters; `call` runs the real forward."""

    @abstractmethod
    def backward(self, roots: Any, call: Callable[[Any], Any]) -> Any:
        """``loss.backward()`` or ``torch.autograd.backward(losses)``."""

    @abstractmethod
    def grad(self, call: functools.partial[Any]) -> Any:
        """``torch.autograd.grad``; `call` holds its arguments, none of them an iterator."""

    @abstractmethod
    def before_update(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Just before an optimizer's own step; may return other arguments for it."""

    @property
    @abstractmethod
    def leaves_update_out(self) -> bool:
        """Behind `before_update`: whether the optimizer's own step finds no gradients."""

    @abstractmethod
    def after_update(self, optimizer: Optimizer, result: Any) -> Any:
        """Just after an optimizer's own step; returns what the script gets for its result."""

    @abstractmethod
    def update_failed(self, optimizer: Optimizer) -> None:
        """An optimizer's own step raised, and the script may catch that and go on.

        Called instead of `after_update`, also when `before_update` itself raised.
        """

    @abstractmethod
    def graph_replays(self) -> None:
        """The script is about to replay a CUDA graph, outside of any other region."""

    @abstractmethod
    def scale(self, scaler: Any, outputs: Any, call: Call) -> Any:
        """``scaler.scale(loss)``."""

    @abstractmethod
    def scaler_step(self, scaler: Any, optimizer: Optimizer, call: Call) -> Any:
        """``scaler.step(optimizer)``."""

    @abstractmethod
    def scaler_reads(self, optimizer: Optimizer, call: Call) -> Any:
        """Within ``scaler.step(optimizer)``: `call` reads from the device whether all gradients are
        finite, and makes the update if they are."""

    @abstractmethod
    def scaler_call(self, call: Call) -> Any:
        """``scaler.update()`` and ``scaler.unscale_(optimizer)``."""

    @abstractmethod
    def clip(
        self, parameters: list[torch.Tensor], max_norm: float, call: Callable[[float], Any]
    ) -> Any:
        """``clip_grad_norm_``; `call` takes the maximal norm to use."""


class Seen(Protocol):
    """What the session offers to the patched functions."""

    call_state: CallState
    last_model: Callable[[], Module | None]
    hooks: Sides[TrainingHooks]
    """Whoever answers now: the replay, or the live driver."""
    has_late_steps: bool
    """Numbers of steps may come from a device later (`LateSteps`)."""

    def object_found(self, kind: str, found: Any) -> None: ...
    def batch_found(self, iterator: Any, batch: Any) -> None: ...
    def has_parameters(self, module: Module) -> bool: ...
    def enters_autocast(self) -> bool: ...
    def update_failed(self, optimizer: Optimizer, depth: int) -> None: ...


class ScriptReads(ABC):
    """Both sides: every method returns what the script gets. In the training's own thread."""

    @abstractmethod
    def read(self, kind: int, call: Call) -> Any:
        """The script reads a value out of a tensor; `kind` is an `EntryKind`."""

    @abstractmethod
    def read_all(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The script has read all of a tensor into an array or a list.

        Returns:
            What it is to read instead; None where it has read the right thing.
        """

    @abstractmethod
    def objects(self, place: list[Any] | None, call: Call, *, all_have: bool) -> Any:
        """Ranks exchange objects of Python, as by ``all_gather_object``.

        Args:
            place: the list into which they come; None for none.
            all_have: behind it all ranks have the same ones.
        """

    @abstractmethod
    def plans(self, call: Call) -> Any:
        """Ranks exchange objects by which torch writes or reads one checkpoint of all of them."""
