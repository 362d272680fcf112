"""The patches of torch by which an unmodified training is seen: its regions and its objects.

Nothing here decides anything: each patched function asks `CallState.is_ours` (written out
where every layer or every step comes by) and hands over to the session's current `TrainingHooks`.
With interception off a patched function is the original one.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any

import torch
from torch import cuda
from torch.compiler import is_dynamo_compiling
from torch.nn import Module
from torch.nn.utils import stateless
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import (
    Optimizer,
)
from torch.utils.data import dataloader
from torch.utils.data.distributed import DistributedSampler

from supervisor.by_identity import ByIdentity
from supervisor.worker.core.call_state import (
    is_capturing,
    is_transforming,
    outside_dynamo,
    run_plainly,
)
from supervisor.worker.core.part import Sides
from supervisor.worker.core.training_hooks import Seen
from supervisor.worker.loading.loading_hooks import LoadingHooks


def instrument(session: Seen, loading: Sides[LoadingHooks]) -> None:
    """Patches torch for the rest of this process's life. Called once, after torch was imported."""
    _patch_forward(session)
    _patch_functional_call(session)
    _patch_backward(session)
    _patch_updates(session)
    _patch_scaler(session)
    if session.has_late_steps:
        _patch_scalers_read(session)
    _patch_clipping(session)
    _patch_autocast(session)
    _patch_construction(session)
    _patch_loader(session, loading)
    _patch_graphs(session)


def _patch_forward(session: Seen) -> None:
    original = Module.__call__
    call_state = session.call_state

    @outside_dynamo
    def outermost(self: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        is_seen = get_ident() == call_state.thread and not (
            is_transforming() or (cuda._initialized and is_capturing())
        )
        if not is_seen or not (self is session.last_model() or session.has_parameters(self)):
            return original(self, *args, **kwargs)
        call = functools.partial(original, self, *args, **kwargs)
        return session.hooks.now.forward(self, args, kwargs, call)

    if _is_plain_call(original):

        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            # Every layer comes by here: torch's own two lines instead of one more call of them.
            if not call_state.depth and call_state.active and not is_dynamo_compiling():
                return outermost(self, args, kwargs)
            if self._compiled_call_impl is not None:
                return self._compiled_call_impl(*args, **kwargs)
            return self._call_impl(*args, **kwargs)

    else:

        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not call_state.depth and call_state.active and not is_dynamo_compiling():
                return outermost(self, args, kwargs)
            return original(self, *args, **kwargs)

    Module.__call__ = __call__  # type: ignore[method-assign]


def _patch_functional_call(session: Seen) -> None:
    """A functional call puts other tensors into the module: it is one region from its outside, so
    that no state is taken while they are in there."""
    original = stateless._functional_call
    call_state = session.call_state

    @run_plainly
    @functools.wraps(original)
    def functional_call(
        module: Any, parameters: Any, args: Any = None, kwargs: Any = None, **options: Any
    ) -> Any:
        call = functools.partial(original, module, parameters, args, kwargs, **options)
        if is_dynamo_compiling() or not call_state.is_ours() or is_transforming():
            return call()
        given = args if isinstance(args, tuple) else () if args is None else (args,)
        return session.hooks.now.forward(module, given, kwargs or {}, call)

    stateless._functional_call = functional_call  # type: ignore[assignment]


def _is_plain_call(call: Callable[..., Any]) -> bool:
    """Whether ``Module.__call__`` is torch's own choice between two methods, and no more."""
    names = getattr(getattr(call, "__code__", None), "co_names", ())
    return set(names) == {"_compiled_call_impl", "_call_impl"}


def _patch_backward(session: Seen) -> None:
    tensor_backward = torch.Tensor.backward
    autograd_backward = torch.autograd.backward
    autograd_grad = torch.autograd.grad
    call_state = session.call_state

    @outside_dynamo
    @functools.wraps(tensor_backward)
    def backward(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if call_state.depth or not call_state.is_ours():
            return tensor_backward(self, *args, **kwargs)  # type: ignore[no-untyped-call]
        if not args and not kwargs:
            return session.hooks.now.backward(self, tensor_backward)
        call = functools.partial(_with_arguments, tensor_backward, args, kwargs)
        return session.hooks.now.backward(self, call)

    @run_plainly
    @functools.wraps(autograd_backward)
    def free_backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling() or call_state.depth or not call_state.is_ours():
            return autograd_backward(tensors, *args, **kwargs)
        tensors = _listed(tensors)
        return session.hooks.now.backward(
            tensors, lambda roots: autograd_backward(roots, *args, **kwargs)
        )

    @run_plainly
    @functools.wraps(autograd_grad)
    def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling() or not call_state.is_ours() or is_transforming():
            return autograd_grad(outputs, inputs, *args, **kwargs)
        call = functools.partial(autograd_grad, outputs, _listed(inputs), *args, **kwargs)
        return session.hooks.now.grad(call)

    torch.Tensor.backward = backward  # type: ignore[method-assign]
    torch.autograd.backward = free_backward
    torch.autograd.grad = grad


def _listed(given: Any) -> Any:
    """Returns what torch takes as one or many; an iterator, read once only, as a list."""
    return list(given) if isinstance(given, Iterator) else given


def _with_arguments(
    original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], root: Any
) -> Any:
    return original(root, *args, **kwargs)


def _patch_updates(session: Seen) -> None:
    call_state = session.call_state
    # A class and its base may both be wrapped: `super().step` is no second update.
    under_way: list[Optimizer] = []
    returned: ByIdentity[Optimizer, Any] = ByIdentity()

    def is_left_alone(optimizer: Optimizer) -> bool:
        if not call_state.active or (cuda._initialized and is_capturing()):
            return True
        return len(under_way) > 1 and sum(one is optimizer for one in under_way) > 1

    @outside_dynamo
    def before(
        step: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] | None:
        # args[0] is the optimizer itself; inside `scaler.step` the depth is not 0.
        optimizer = args[0]
        if is_left_alone(optimizer):
            return None
        changed = session.hooks.now.before_update(optimizer, args[1:], kwargs)
        if changed is not None:
            return step, (optimizer, *changed[0]), changed[1]
        if len(args) == 1 and not kwargs and session.hooks.now.leaves_update_out:
            return functools.partial(_without_gradients, step, returned.get(optimizer)), args, {}
        return None

    @outside_dynamo
    def after(optimizer: Optimizer, result: Any) -> Any:
        if not is_left_alone(optimizer):
            if call_state.replaying:
                is_tensor = isinstance(result, torch.Tensor)
                if optimizer not in returned:
                    returned[optimizer] = result.detach() if is_tensor else result
            return session.hooks.now.after_update(optimizer, result)
        return result

    # Torch calls no hook when a step raises. It wraps each optimizer's class at its first instance.
    hooked_step = Optimizer.profile_hook_step

    def profile_hook_step(step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def watched(*args: Any, **kwargs: Any) -> Any:
            # Within the hooks that the script has registered: they see gradients, and what they
            # read is its own. Torch would call ours before its.
            optimizer = args[0]
            make, args, kwargs = before(step, args, kwargs) or (step, args, kwargs)
            return after(optimizer, make(*args, **kwargs))

        original = hooked_step(watched)

        @outside_dynamo
        def failed(optimizer: Optimizer, depth: int) -> None:
            if call_state.active and not any(one is optimizer for one in under_way):
                session.update_failed(optimizer, depth)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            depth = call_state.depth
            under_way.append(args[0])
            try:
                result = original(*args, **kwargs)
            except BaseException:
                under_way.pop()
                failed(args[0], depth)
                raise
            under_way.pop()
            return result

        return wrapper

    Optimizer.profile_hook_step = staticmethod(profile_hook_step)  # type: ignore[method-assign,assignment]


def _without_gradients(step: Callable[..., Any], like: Any, optimizer: Optimizer) -> Any:
    """Makes an update that is to change nothing: one of the script's own may need gradients.

    Args:
        like: what it returned when it was really made; what comes back in its place.
    """
    try:
        return step(optimizer)
    except Exception:
        return like.clone() if isinstance(like, torch.Tensor) else like


def _patch_scaler(session: Seen) -> None:
    scaler_class = torch.amp.GradScaler
    call_state = session.call_state

    def wrap(name: str, hand_over: Callable[..., Any]) -> None:
        original = getattr(scaler_class, name)

        @outside_dynamo
        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not call_state.is_ours():
                return original(self, *args, **kwargs)
            first = next(iter((*args, *kwargs.values())), None)  # torch complains of none itself
            return hand_over(self, first, functools.partial(original, self, *args, **kwargs))

        setattr(scaler_class, name, method)

    wrap("scale", lambda scaler, given, call: session.hooks.now.scale(scaler, given, call))
    wrap("step", lambda scaler, given, call: session.hooks.now.scaler_step(scaler, given, call))
    wrap("update", lambda scaler, given, call: session.hooks.now.scaler_call(call))
    wrap("unscale_", lambda scaler, given, call: session.hooks.now.scaler_call(call))


def _patch_scalers_read(session: Seen) -> None:
    """Of optimizers that take no flag: for others a scaler reads nothing."""
    scaler_class = torch.amp.GradScaler
    original = scaler_class._maybe_opt_step

    @outside_dynamo
    @functools.wraps(original)
    def _maybe_opt_step(self: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        call = functools.partial(original, self, optimizer, *args, **kwargs)
        if not session.call_state.active or is_capturing():
            return call()
        return session.hooks.now.scaler_reads(optimizer, call)

    scaler_class._maybe_opt_step = _maybe_opt_step  # type: ignore[method-assign]


def _patch_clipping(session: Seen) -> None:
    original = torch.nn.utils.clip_grad_norm_
    call_state = session.call_state

    @run_plainly
    @functools.wraps(original)
    def clip_grad_norm_(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling() or not call_state.is_ours():
            return original(parameters, max_norm, *args, **kwargs)
        if isinstance(parameters, torch.Tensor):
            chosen = [parameters]
        else:  # to list all of a model costs a fifth of a replayed step, which needs their device
            chosen = list(itertools.islice(parameters, 1 if call_state.replaying else None))
        given = chosen or parameters  # torch warns of an empty generator
        if not args and not kwargs:
            return session.hooks.now.clip(chosen, max_norm, functools.partial(original, given))
        return session.hooks.now.clip(
            chosen, max_norm, lambda norm: original(given, norm, *args, **kwargs)
        )

    torch.nn.utils.clip_grad_norm_ = clip_grad_norm_
    torch.nn.utils.clip_grad.clip_grad_norm_ = clip_grad_norm_


def _patch_autocast(session: Seen) -> None:
    original = torch.autocast.__enter__

    def __enter__(self: Any) -> Any:
        if not (session.call_state.active and session.enters_autocast()):
            return original(self)  # type: ignore[no-untyped-call]
        # For this region only: scripts keep one context and enter it again after an undo.
        enabled, self._enabled = self._enabled, False
        try:
            return original(self)  # type: ignore[no-untyped-call]
        finally:
            self._enabled = enabled

    torch.autocast.__enter__ = __enter__  # type: ignore[method-assign]


def _patch_construction(session: Seen) -> None:
    def watch(cls: type, kind: str) -> None:
        original = cls.__init__  # type: ignore[misc]

        @run_plainly
        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            if session.call_state.active and not is_dynamo_compiling():
                session.object_found(kind, self)

        cls.__init__ = __init__  # type: ignore[misc]

    watch(Optimizer, "optimizer")
    watch(LRScheduler, "scheduler")
    watch(torch.amp.GradScaler, "scaler")
    watch(DistributedSampler, "sampler")


def _patch_loader(session: Seen, loading: Sides[LoadingHooks]) -> None:
    original = dataloader._BaseDataLoaderIter.__next__
    call_state = session.call_state

    @outside_dynamo
    def __next__(self: Any) -> Any:
        batch = original(self)
        if not call_state.is_ours():
            return batch
        session.batch_found(self, batch)
        return loading.now.batch(batch)

    dataloader._BaseDataLoaderIter.__next__ = __next__  # type: ignore[method-assign]


def _patch_graphs(session: Seen) -> None:
    """Within a capture nothing is carried out, so all patched functions are the original ones."""
    call_state = session.call_state

    @outside_dynamo
    def tell(_: object) -> None:
        if call_state.is_ours():
            session.hooks.now.graph_replays()

    register = getattr(torch.cuda.graphs, "register_graph_replay_start_hook", None)
    if register is not None:  # torch 2.14
        register(tell)
        return
    original = torch.cuda.CUDAGraph.replay

    @outside_dynamo
    @functools.wraps(original)
    def replay(self: torch.cuda.CUDAGraph) -> None:
        tell(self)
        original(self)

    torch.cuda.CUDAGraph.replay = replay  # type: ignore[method-assign]
