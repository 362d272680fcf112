"""For people who write kinds of mistakes: their class at the moments of a small training, in this
process, and the suite that any kind must pass."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer, optimizer
from torch.optim.lr_scheduler import LRScheduler

from supervisor.records import Alert, StepRecord
from supervisor.settings import MistakeSettings
from supervisor.training_state.registry import Registry
from supervisor.worker.mistakes.evidence import places
from supervisor.worker.mistakes.evidence.mistake import Mistake, SeenSoFar
from supervisor.worker.mistakes.watch import MistakeWatch
from supervisor.worker.script_state.user_frames import is_users

MOST = 200
"""Steps after which a training is ended where it is only looked at."""


class Hooked:
    """One training, as a `MistakeWatch` sees it under `supervisor run`: forwards, backwards and
    updates.

    Args:
        ends_when_done: `Done` is raised where the watch can see nothing more, or after `MOST`.

    Attributes:
        alerts: what was told.
        errors: of the watch.
        states: a digest of weights and random state after each update, with `keeps_states`.
    """

    def __init__(
        self,
        *,
        ends_when_done: bool = False,
        is_enabled: bool = True,
        keeps_states: bool = False,
    ) -> None:
        self.alerts: list[Alert] = []
        self.errors: list[BaseException] = []
        self.registry = Registry()
        self.is_hooked = False
        self.states: list[bytes] = []
        self._keeps_states = keeps_states
        self._ends_when_done = ends_when_done
        self._depth = self.steps = 0
        self._main: Optimizer | None = None
        self.watch = MistakeWatch(
            MistakeSettings(enabled=is_enabled),
            SeenSoFar(
                registry=self.registry,
                steps_done=lambda: self.steps,
                has_tensor_hooks=lambda: self.is_hooked,
            ),
            SimpleNamespace(tell=self._tell),  # type: ignore[arg-type]
            tells=True,
            warn=lambda *_, **__: None,  # type: ignore[arg-type]
            breakers=lambda *_, **__: _Part(self.errors),  # type: ignore[arg-type]
        )

    def _tell(self, record: StepRecord, alerts: tuple[Alert, ...]) -> None:
        self.alerts += alerts

    def before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """Called before each update; returns other arguments for it, or None."""
        self._main = self._main or optimizer
        self.registry.add_optimizer(optimizer)
        self._depth += 1
        if self.watch.is_on and self._depth == 1:
            self.watch.before_update(optimizer)

    def after(self, optimizer: Optimizer, *_: Any) -> None:
        self._depth -= 1
        if self._depth:
            return  # of a class whose step() calls that of its base
        self.steps += optimizer is self._main
        if self._keeps_states:
            self.states.append(_digest(optimizer))
        if self.watch.is_on:
            is_main = optimizer is self._main
            self.watch.updated(optimizer, self.steps, is_main=is_main, is_left_out=False)
        elif self._ends_when_done and (not self.watch.is_enabled or self.steps >= MOST):
            raise Done

    @contextlib.contextmanager
    def patched(self) -> Iterator[None]:
        """Torch tells the watch what it does, until the end of the block."""
        with contextlib.ExitStack() as stack:
            for owner, name, made in self._patches():
                stack.callback(_put_back, owner, name, owner.__dict__.get(name))
                setattr(owner, name, made(getattr(owner, name)))
            own = {inspect.getfile(cls) for cls in type(self).__mro__[:-1]}
            looked = lambda path: path not in own and is_users(path)  # noqa: E731
            before = set(sys.modules)  # what imports us is no part of the script
            since = lambda: [m for name, m in list(sys.modules.items()) if name not in before]  # noqa: E731
            for name, changed in (("is_users", looked), ("imported", since)):
                stack.callback(setattr, places, name, getattr(places, name))
                setattr(places, name, changed)
            stack.callback(optimizer.register_optimizer_step_pre_hook(self.before).remove)
            stack.callback(optimizer.register_optimizer_step_post_hook(self.after).remove)
            yield

    def _patches(self) -> list[tuple[Any, str, Callable[[Any], Any]]]:
        return [
            (Module, "__call__", self._forward),
            (torch.Tensor, "backward", self._backward),
            (Optimizer, "__init__", lambda original: self._made(original, "optimizer")),
            (LRScheduler, "__init__", lambda original: self._made(original, "scheduler")),
        ]

    def _forward(self, original: Any) -> Any:
        def forward(module: Module, *args: Any, **kwargs: Any) -> Any:
            watch = self.watch
            if self._depth or next(Module.parameters(module), None) is None:
                return original(module, *args, **kwargs)
            self.registry.add_model(module)
            self._depth += 1
            try:
                if watch.is_on:
                    watch.forward(module, args, kwargs)
                if watch.sleeps and not torch.is_grad_enabled():
                    watch.evaluated(module, args, kwargs)
                return original(module, *args, **kwargs)
            finally:
                watch.forward_ended()
                self._depth -= 1

        return forward

    def _backward(self, original: Any) -> Any:
        def backward(loss: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if self.watch.is_on:
                self.watch.backward(loss)
            self._depth += 1
            try:
                original(loss, *args, **kwargs)
            finally:
                self._depth -= 1
            if self.watch.is_on:
                self.watch.backward_ended()

        return backward

    def _made(self, original: Any, kind: str) -> Any:
        def init(made: Any, *args: Any, **kwargs: Any) -> None:
            original(made, *args, **kwargs)
            self.watch.made(kind, made)
            if kind == "optimizer":
                self.registry.add_optimizer(made)

        return init


def _put_back(owner: Any, name: str, original: Any) -> None:
    if original is None:  # a base class has it
        delattr(owner, name)
    else:
        setattr(owner, name, original)


class Done(BaseException):
    """The watch is over: the rest of the script can prove nothing more."""


class _Part:
    def __init__(self, errors: list[BaseException]) -> None:
        self._errors = errors

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if error is not None:
            self._errors.append(error)
        return True


def check_mistake(
    kind: type[Mistake], *, bad: Callable[[], object], ok: Callable[[], object]
) -> None:
    """Raises AssertionError unless `kind` is told in `bad` and silent in `ok`, a healthy twin that
    looks the same, and changes nothing in either: not a weight, not a random number.

    Args:
        kind: a class of yours; its docstring says ``Proof:`` and ``Spares:``.
        bad, ok: train a small model for at least 64 updates, and seed torch first.
    """
    assert re.fullmatch(r"[a-z][a-z0-9_]*", getattr(kind, "kind", "")), (
        "kind: give a snake_case name"
    )
    words = inspect.getdoc(kind) or ""
    for word in ("Proof:", "Spares:"):
        assert word in words, f"{kind.__name__}: its docstring says no {word}"
    for training, is_bad in ((bad, True), (ok, False)):
        plain, watched = _trained(training, None), _trained(training, kind)
        if watched.errors:
            raise AssertionError(f"{kind.__name__} raised") from watched.errors[0]
        told = [alert for alert in watched.alerts if alert.kind == kind.kind]
        what = "the bad training" if is_bad else "the healthy twin"
        assert len(told) == is_bad, f"{kind.kind}: told {len(told)} times in {what}"
        assert plain.states == watched.states, f"{kind.kind}: changes {what}"


def _trained(training: Callable[[], object], kind: type[Mistake] | None) -> Hooked:
    run = Hooked(is_enabled=False, keeps_states=True)
    if kind is not None:
        run.watch.begin_with(kind())
    with run.patched():
        training()
    return run


def _digest(optimizer: Optimizer) -> bytes:
    """Of the bits of all weights that it trains, and of the random state."""
    found = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
    for group in optimizer.param_groups:
        for each in group["params"]:
            found.update(each.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return found.digest()
