"""The models, optimizers, schedulers and scalers of a run, under names that stay the same.

A hook that the script has called when a parameter has got its gradient.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.utils.weak import WeakIdKeyDictionary

from supervisor.by_identity import IdentitySet
from supervisor.errors import UsageError
from supervisor.training_state.tensors import local, outside_autograd

_Hook = Callable[[torch.Tensor], Any]


class GradientHook:
    """Stands in the place of a hook of ``register_post_accumulate_grad_hook``.

    Args:
        script_hook: what the script has registered.
        parameter: for whose gradient.
        called: what a backward calls in its place.

    Attributes:
        number: of such hooks, in the order in which the script registered them.
    """

    __slots__ = ("__weakref__", "_called", "_parameter", "number", "script_hook")

    def __init__(
        self, script_hook: _Hook, parameter: torch.Tensor, called: Callable[[GradientHook], Any]
    ) -> None:
        self.script_hook = script_hook
        self.number = -1
        self._parameter = weakref.ref(parameter)
        self._called = called

    def __call__(self, parameter: torch.Tensor) -> None:
        if is_dynamo_compiling():  # a part of a backward that is compiled whole
            self.script_hook(parameter)
        else:
            self._called(self)

    @property
    def parameter(self) -> torch.Tensor | None:
        """None when the script has dropped it."""
        return self._parameter()

    def run(self) -> None:
        """Runs the script's hook."""
        parameter = self._parameter()
        if parameter is not None:
            self.script_hook(parameter)


def hook_of_script(hook: Any) -> Any:
    """Returns what the script has registered."""
    return hook.script_hook if isinstance(hook, GradientHook) else hook


_read = torch._C.TensorBase.item  # unseen by the patched `Tensor.item`


class _Shelf:
    """Objects of one kind in order of first sight, held weakly where their class allows it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._holders: dict[str, Callable[[], Any]] = {}
        self._next = 0

    def name_of(self, wanted: object) -> str | None:
        for name, holder in self._holders.items():
            if holder() is wanted:
                return name
        return None

    def put(self, value: object, name: str | None = None) -> str:
        if name is None:
            name = f"{self.kind}_{self._next}"
            self._next += 1
        try:
            self._holders[name] = weakref.ref(value)
        except TypeError:
            self._holders[name] = lambda: value
        return name

    def remove(self, name: str) -> None:
        self._holders.pop(name, None)

    def has_given(self, name: str) -> bool:
        kind, number = _order(name)
        return kind == self.kind and number < self._next

    def rename(self, names: Mapping[str, str]) -> None:
        holders = {names.get(name, name): holder for name, holder in self._holders.items()}
        self._holders = dict(sorted(holders.items(), key=lambda item: _order(item[0])))

    def alive(self) -> dict[str, Any]:
        found = {}
        for name, holder in self._holders.items():  # asked at every step: no generator
            value = holder()
            if value is not None:
                found[name] = value
        return found


class Registry:
    """The objects that a checkpoint saves, held weakly, under names in order of first sight.

    The same script gives the same names (``model_0``, ``optimizer_0``, ...) in every process. A
    model inside a registered one is not added; a wrapper added later takes the name of the first
    registered model that it contains, and the others leave.

    Attributes:
        gradient_hooks: those that the script has registered, by number.
        retained: tensors between, of which the script wants the gradient (`retain_grad`), as keys.
        unwritten: buffers that held NaN before their model was ever called: of `torch.empty`, and
            nobody reads what nobody has written.
        splits_data: a `DistributedSampler` gives each rank its share of the data.
    """

    def __init__(self) -> None:
        self._models = _Shelf("model")
        self._optimizers = _Shelf("optimizer")
        self._schedulers = _Shelf("scheduler")
        self._scalers = _Shelf("scaler")
        self._tracked = _Shelf("tracked")
        self._numbered = (self._models, self._optimizers, self._schedulers, self._scalers)
        self.gradient_hooks: weakref.WeakValueDictionary[int, GradientHook] = (
            weakref.WeakValueDictionary()
        )
        self.retained: Any = WeakIdKeyDictionary()
        self._hooks_seen = 0
        self.splits_data = False
        self._seen_modules: IdentitySet[nn.Module] = IdentitySet()
        self.unwritten: IdentitySet[torch.Tensor] = IdentitySet()

    @property
    def models(self) -> dict[str, nn.Module]:
        return self._models.alive()

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return self._optimizers.alive()

    @property
    def schedulers(self) -> dict[str, Any]:
        return self._schedulers.alive()

    @property
    def scalers(self) -> dict[str, Any]:
        return self._scalers.alive()

    @property
    def tracked(self) -> dict[str, Any]:
        return self._tracked.alive()

    def has_given(self, name: str) -> bool:
        """Whether an object has had this name, or might have had it, in this process."""
        return any(shelf.has_given(name) for shelf in self._numbered)

    def forget(self, names: Iterable[str]) -> None:
        """Called with names of objects that the script has dropped."""
        for name in list(names):
            for shelf in self._numbered:
                shelf.remove(name)

    def add_model(self, module: nn.Module) -> str:
        """Registers a root module; returns the name of the root under which it is saved."""
        if module in self._seen_modules:
            name = self._root_of(module)
            if name is not None:
                return name
        inside = {id(part) for part in module.modules()}
        contained = [name for name, model in self.models.items() if id(model) in inside]
        parent = None if contained else self._root_of(module)
        if parent is None:
            parent = self._models.put(module, contained[0] if contained else None)
            for name in contained[1:]:
                self._models.remove(name)
        self._seen_modules.add(module)
        self.unwritten.update(_unwritten(module))
        return parent

    def add_retained(self, tensor: torch.Tensor) -> None:
        self.retained[tensor] = None

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> str:
        return self._optimizers.name_of(optimizer) or self._optimizers.put(optimizer)

    def rename(self, names: Mapping[str, str]) -> None:
        """Called before a state is put back; `names`: old → new, of one kind, each new one used
        once."""
        for shelf in self._numbered:
            shelf.rename(names)

    def add_scheduler(self, scheduler: Any) -> str:
        return self._schedulers.name_of(scheduler) or self._schedulers.put(scheduler)

    def add_scaler(self, scaler: Any) -> str:
        return self._scalers.name_of(scaler) or self._scalers.put(scaler)

    def add_gradient_hook(self, hook: GradientHook) -> None:
        """Gives it its number; they belong to no checkpoint."""
        hook.number = self._hooks_seen
        self._hooks_seen += 1
        self.gradient_hooks[hook.number] = hook

    def add_sampler(self, sampler: object) -> None:
        """The script has made a sampler that divides the data among ranks."""
        self.splits_data = True

    def track(self, name: str, value: Any) -> str:
        """Registers anything else that has ``state_dict`` and ``load_state_dict``.

        Modules, optimizers and known objects are added as such. A name used again replaces the
        former object.

        Raises:
            UsageError: `value` lacks one of the two methods.
        """
        if isinstance(value, nn.Module):
            return self.add_model(value)
        if isinstance(value, torch.optim.Optimizer):
            return self.add_optimizer(value)
        for shelf in (self._schedulers, self._scalers):
            known = shelf.name_of(value)
            if known is not None:
                return known
        for method in ("state_dict", "load_state_dict"):
            if not callable(getattr(value, method, None)):
                raise UsageError(
                    f"supervisor.track({name}=...): {type(value).__name__} has no {method}(): "
                    "give it state_dict() and load_state_dict(), or track what it holds"
                )
        return self._tracked.put(value, name)

    def _root_of(self, module: nn.Module) -> str | None:
        for name, model in self.models.items():
            if model is module or any(part is module for part in model.modules()):
                return name
        return None


def _order(name: str) -> tuple[str, int]:
    kind, _, number = name.rpartition("_")
    return kind, int(number)


def _unwritten(module: nn.Module) -> list[torch.Tensor]:
    found = []
    for buffer in module.buffers():
        with contextlib.suppress(Exception), outside_autograd():  # a lazy one, of other memory, ...
            values = local(buffer)
            if not (values.is_floating_point() and values.numel()) or values.is_meta:
                continue
            least = _read(torch.aminmax(values).min)  # NaN if there is one; without a copy
            if least != least:
                found.append(buffer)
    return found
