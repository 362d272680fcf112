"""What the script keeps in threads, queues and tasks, which otherwise belong to the process.

What the script has set for its whole process, to which no variable of it leads. Handles of what
ranks exchange while the script goes on (`async_op=True`). What modules, optimizers, loaders and
tasks hold beside what torch's own state tells.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from supervisor.by_identity import ByIdentity
from supervisor.training_state.registry import hook_of_script
from supervisor.training_state.script_state.inside_objects import (
    FrameVariables,
    attributes,
    of_stack,
    of_variables,
)
from supervisor.training_state.script_state.place import (
    Place,
    assigned_by,
    is_of_the_process,
    is_pythons_own,
    is_torchs,
    write_attribute,
    write_item,
)
from supervisor.training_state.user_code import is_library_file, is_users_class

_OURS = str(Path(__file__).parents[2]) + os.sep


def of_derived(path: str, value: Any) -> Iterator[Place]:
    """What a class of the script adds to one of the process (`class Trainer(Thread)`): not what
    that one keeps for itself, and nothing of a thread that runs beside this one."""
    if isinstance(value, threading.Thread) and _runs_beside(value):
        return
    bases = [kind for kind in type(value).__mro__ if is_of_the_process(kind)]
    theirs = {f"{path}.{name}" for kind in bases for name in assigned_by(kind)}
    yield from (place for place in attributes(path, value) if place.path not in theirs)
    for enter in filter(None, map(of_process, bases)):
        yield from enter(path, value)


_OF_PYTHON = (types.ModuleType, types.FunctionType, type)
_drivers: ByIdentity[type, bool] = ByIdentity()
"""Kinds of a library's objects → whether one holds the module of a database's driver."""


def is_database(value: Any, inside: Iterable[Place]) -> bool:
    """Whether an object is a library's around a database: its connections, and the statements that
    it has compiled. They belong to the process; what the script keeps there is in the database.

    Known by the module of a driver (PEP 249) that it, or a part of it, holds.

    Args:
        inside: what lies in it.
    """
    parts = (place.value for place in inside if type(place.value).__dictoffset__)
    return any(_is_driver(part) or _holds_driver(part) for part in parts) and not is_users_class(
        type(value)
    )


def _is_driver(value: Any) -> bool:
    return type(value) is types.ModuleType and {"apilevel", "paramstyle"} <= vars(value).keys()


def _holds_driver(value: Any) -> bool:
    kind = type(value)
    known: bool | None = _drivers.get(kind)
    if known is None:
        parts: dict[str, Any] = {}
        if not issubclass(kind, _OF_PYTHON) and not is_users_class(kind):
            parts = object.__getattribute__(value, "__dict__")
        known = _drivers[kind] = any(map(_is_driver, parts.values()))
    return known


def of_queue(path: str, queue: Any) -> Iterator[Place]:
    """What lies in it, unless another thread may put something in, or take it out, meanwhile."""
    if not _others_run():
        yield Place(f"{path}.queue", queue.queue)


def of_queue_of_tasks(path: str, queue: Any) -> Iterator[Place]:
    yield Place(f"{path}.queue", vars(queue)["_queue"])


def of_future(path: str, future: Any) -> Iterator[Place]:
    if future.done() and not future.cancelled() and future.exception() is None:
        yield Place(f"{path}.result", future.result())


def of_task(path: str, task: Any) -> Iterator[Place]:
    yield from of_future(path, task)
    yield Place(f"{path}.coroutine", task.get_coro())


def of_coroutine(path: str, value: types.CoroutineType[Any, Any, Any]) -> Iterator[Place]:
    frame = value.cr_frame
    if frame is not None and not value.cr_running:
        yield from of_variables(path, FrameVariables(frame))
        yield Place(f"{path}.await", value.cr_await)
        yield from of_stack(path, value)


def of_logger(path: str, logger: Any) -> Iterator[Place]:
    """Its handlers and filters; those that are the script's own are entered."""
    for number, one in enumerate([*logger.handlers, *logger.filters]):
        yield Place(f"{path}.parts[{number}]", one)


def of_shared(path: str, value: Any) -> Iterator[Place]:
    yield Place(f"{path}.value", value.get_obj())


def _runs_beside(thread: threading.Thread) -> bool:
    return thread.is_alive() and thread is not threading.current_thread()


def _others_run() -> bool:
    """Whether another thread executes a function of the script."""
    own = threading.get_ident()
    return any(_is_of_script(f) for number, f in sys._current_frames().items() if number != own)


def _is_of_script(frame: types.FrameType | None) -> bool:
    while frame is not None:
        file = frame.f_code.co_filename
        if not (file.startswith((_OURS, "<frozen")) or is_library_file(file)):
            return True
        frame = frame.f_back
    return False


_BY_NAME: dict[str, Callable[[str, Any], Iterator[Place]]] = {
    "queue.Queue": of_queue,
    "asyncio.queues.Queue": of_queue_of_tasks,
    "logging.Logger": of_logger,
    "logging.RootLogger": of_logger,
    **dict.fromkeys(
        (
            *("multiprocessing.sharedctypes.Synchronized",),
            *("multiprocessing.sharedctypes.SynchronizedArray",),
        ),
        of_shared,
    ),
    "concurrent.futures._base.Future": of_future,
    "_asyncio.Future": of_future,
    "_asyncio.Task": of_task,
}
"""By the names of their classes: who does not use them need not import them."""


def of_process(kind: type) -> Callable[[str, Any], Iterator[Place]] | None:
    """Returns what lists the script's own values in such an object; None for other classes."""
    return _BY_NAME.get(f"{kind.__module__}.{kind.__qualname__}")


_AT_FIRST = dict(os.environ)
_PROCESS_HOOKS: dict[str, tuple[Any, str]] = {
    "hooks_before_forwards": (modules, "_global_forward_pre_hooks"),
    "hooks_after_forwards": (modules, "_global_forward_hooks"),
    "hooks_before_backwards": (modules, "_global_backward_pre_hooks"),
    "hooks_after_backwards": (modules, "_global_backward_hooks"),
    "hooks_before_updates": (optimizers, "_global_optimizer_pre_hooks"),
    "hooks_after_updates": (optimizers, "_global_optimizer_post_hooks"),
}
_COMPILERS = ("_TORCHINDUCTOR_", "TORCHINDUCTOR_")
"""Torch tells its compiled code so where things lie in this process."""
_TYPE, _NUMPY, _LOGGER, _VARIABLE = "default_dtype", "numpy_errors", "logger", "environment_"


class ProcessWide(Mapping[str, Any]):
    """Hooks for all modules and optimizers, variables of the environment that were set since the
    worker began, the type of new tensors, what NumPy does about overflows, and the root logger."""

    def __iter__(self) -> Iterator[str]:
        yield from (_TYPE, _NUMPY, _LOGGER)
        yield from (name for name in _PROCESS_HOOKS if self[name])
        changed = (
            key
            for key, text in os.environ.items()
            if _AT_FIRST.get(key) != text and not key.startswith(_COMPILERS)
        )
        yield from (_VARIABLE + key for key in changed)

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __getitem__(self, name: str) -> Any:
        if name in _PROCESS_HOOKS:
            owner, attribute = _PROCESS_HOOKS[name]
            return tuple(hook for hook in getattr(owner, attribute).values() if _is_scripts(hook))
        if name == _TYPE:
            return str(torch.get_default_dtype()).removeprefix("torch.")
        if name == _NUMPY:
            return dict(np.geterr())
        return logging.root if name == _LOGGER else os.environ[name.removeprefix(_VARIABLE)]

    def __setitem__(self, name: str, value: Any) -> None:
        if name == _TYPE:
            torch.set_default_dtype(getattr(torch, value))
        elif name == _NUMPY:
            np.seterr(**value)
        elif name.startswith(_VARIABLE):
            os.environ[name.removeprefix(_VARIABLE)] = value
        else:
            raise KeyError(name)


def _is_scripts(hook: Any) -> bool:
    return not is_torchs(hook) and not is_of_the_process(getattr(hook, "__func__", hook))


HANDLES: tuple[type, ...] = (
    torch._C.Future,
    *((torch.distributed.Work,) if torch.distributed.is_available() else ()),
)
STILL_UNDER_WAY = "is an exchange between ranks that is still under way"
_NAP_S = 0.0005


def wait_for(handle: Any, until: float) -> None:
    """Returns when an exchange is done.

    Args:
        handle: one of `HANDLES`.
        until: how long to wait, in the time of `time.monotonic`.
    """
    while not _is_done(handle) and time.monotonic() < until:
        time.sleep(_NAP_S)


def still_under_way(handles: Mapping[str, Any]) -> list[str]:
    """Returns a line for each exchange that is not done.

    Args:
        handles: by the paths that lead to them.
    """
    return [f"{path} {STILL_UNDER_WAY}" for path, one in handles.items() if not _is_done(one)]


def came_of(handle: Any) -> Any:
    """Returns what has come; None where it is not done, has failed, or its backend cannot tell."""
    try:
        if not _is_done(handle):
            return None
        future = handle if isinstance(handle, torch._C.Future) else handle.get_future()
        return future.value() if future.done() else None
    except Exception:  # the task's own, or that of a backend without futures
        return None


def _is_done(handle: Any) -> bool:
    is_future = isinstance(handle, torch._C.Future)
    return bool(handle.done() if is_future else handle.is_completed())


_HOOKS = (
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    *("_state_dict_hooks", "_load_state_dict_pre_hooks"),
)
_OF_OPTIMIZER = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_PARTS_OF_MODULE = frozenset(vars(nn.Module()))
_OF_SCHEDULES = frozenset({"step", "_opt_called"})
"""What torch's schedules write to an optimizer."""
_OF_SPARSE: dict[torch.layout, tuple[str, ...]] = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
_LOADERS_PLACE = ("_dataset", "_index_sampler", "_sampler_iter", "_num_yielded", "_rcvd_idx")


def of_module(path: str, module: nn.Module) -> Iterator[Place]:
    for name, own in list(vars(module).items()):
        if name in ("_parameters", "_buffers", "_modules"):
            write = write_item if name == "_buffers" else None
            for key, item in list(own.items()):
                yield Place(f"{path}.{key}", item, own, key, write)
        elif name in _HOOKS:
            for number, hook in enumerate(list(own.values())):
                if not is_torchs(hook):
                    yield Place(f"{path}.{name}[{number}]", hook)
        elif name not in _PARTS_OF_MODULE and not is_pythons_own(name):
            yield Place(f"{path}.{name}", own, vars(module), name, write_item)
    if isinstance(module, torch.jit.ScriptModule):
        yield from _of_script_module(path, module)


def _of_script_module(path: str, module: Any) -> Iterator[Place]:
    """Attributes of a module that `torch.jit.script` has made: they are in C++."""
    known = getattr(module, "_concrete_type", None)
    for name in known.get_attributes() if known is not None else ():
        own = module._c  # to set it on the module would only hide the one that its forward reads
        yield Place(f"{path}.{name}", own.getattr(name), own, name, _write_in_script_module)


def _write_in_script_module(own: Any, name: Any, value: Any) -> None:
    own.setattr(name, value)


_BARE = (torch.Tensor, nn.Parameter)


def is_bare(tensor: Any) -> bool:
    """Whether it is a tensor to which nothing belongs, as are nearly all of a model's."""
    return (
        type(tensor) in _BARE
        and tensor.layout is torch.strided
        and not tensor.__dict__
        and not tensor._backward_hooks
        and not getattr(tensor, "_post_accumulate_grad_hooks", None)
    )


def of_tensor(path: str, tensor: torch.Tensor) -> Iterator[Place]:
    """What the script keeps on a tensor (`p.average = ...`), its hooks, and the parts of a sparse
    one."""
    with torch._C.DisableTorchFunctionSubclass():
        layout = tensor.layout
        hooks = getattr(tensor, "_backward_hooks", None) or {}
        after = getattr(tensor, "_post_accumulate_grad_hooks", None) or {}
    for part in _OF_SPARSE.get(layout, ()):
        yield Place(f"{path}.{part}", getattr(tensor.detach(), part)())
    for name, item in list(vars(tensor).items()):
        yield Place(f"{path}.{name}", item, tensor, name, write_attribute)
    for number, hook in enumerate([*hooks.values(), *map(hook_of_script, after.values())]):
        if not is_torchs(hook):
            yield Place(f"{path}.hooks[{number}]", hook)


def of_optimizer(path: str, optimizer: torch.optim.Optimizer) -> Iterator[Place]:
    """What an optimizer keeps beside its state: slow weights, averages, what the script has put on
    it. What a class of torch's has written there belongs to its state."""
    kinds = [kind for kind in type(optimizer).__mro__ if str(kind.__module__).startswith("torch.")]
    torchs = _OF_SCHEDULES.union(*map(assigned_by, kinds))
    for name in _OF_OPTIMIZER:
        for number, hook in enumerate(list(getattr(optimizer, name, {}).values())):
            if not is_torchs(hook):
                yield Place(f"{path}.{name}[{number}]", hook)
    for name, item in list(vars(optimizer).items()):
        if name not in torchs and not is_pythons_own(name):
            yield Place(f"{path}.{name}", item, optimizer, name, write_attribute)


def of_handle(path: str, handle: Any) -> Iterator[Place]:
    """What an exchange between ranks has brought, or another task of torch; nothing before that.

    An exchange tells of its tensors alone: not every backend lists them.
    """
    value = came_of(handle)
    if isinstance(handle, torch._C.Future):
        if value is not None:
            yield Place(f"{path}.value", value)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield Place(f"{path}.value[{number}]", item)


def of_loader(path: str, iterator: Any) -> Iterator[Place]:
    """Where an iterator with workers stands. Which of their batches have arrived, and for which
    they were asked, belongs to this process's workers and is never written."""
    for name in _LOADERS_PLACE:
        if name in vars(iterator):
            yield Place(f"{path}.{name}", vars(iterator)[name])
