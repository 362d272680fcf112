"""What the script keeps in threads, queues and tasks, which otherwise belong to the process."""

from __future__ import annotations

import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from supervisor.training_state.census.frame_variables import FrameVariables
from supervisor.training_state.census.inside_functions import of_stack, of_variables
from supervisor.training_state.census.inside_objects import attributes
from supervisor.training_state.census.left_out import assigned_by, is_of_the_process
from supervisor.training_state.census.place import Place
from supervisor.training_state.user_code import is_library_file

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
