"""What the patched functions of torch ask on every call."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any, TypeVar, cast

import torch
from torch import cuda as _cuda
from torch.compiler import is_dynamo_compiling


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured: what is called is noted, not computed. A value read
    there, or the state of a generator, ends the capture with an error."""
    return _cuda._initialized and torch.cuda.is_current_stream_capturing()


class CallState:
    """Whether, and where within a step, the patched functions should do anything.

    Attributes:
        active: False before the session begins, after it ended, and in forked children (loader
            workers): then every patched function is the original one.
        depth: above 0 inside a region (an outermost forward, a backward, an update): what happens
            there belongs to the region and is neither seen nor recorded on its own.
        has_tensor_hooks: something was hung on a tensor, to be called in a backward.
        replaying: a fast-forward is under way.
        thread: identifier of the training's own thread.
    """

    __slots__ = ("_lent", "active", "depth", "has_tensor_hooks", "replaying", "thread")

    def __init__(self) -> None:
        self.active = False
        self.depth = 0
        self.has_tensor_hooks = False
        self.replaying = False
        self.thread = get_ident()
        self._lent = threading.RLock()

    def is_ours(self) -> bool:
        """Whether a call outside of any region comes from the training's own thread, and is really
        carried out."""
        return (
            self.active
            and not self.depth
            and get_ident() == self.thread
            and not (_cuda._initialized and is_capturing())
        )

    @contextlib.contextmanager
    def region(self) -> Iterator[None]:
        """What happens inside is ours, not the script's."""
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    @contextlib.contextmanager
    def scripts_own(self) -> Iterator[bool]:
        """What happens inside is the script's again, within a region; torch may call it in another
        thread, while the training's own one waits.

        Yields:
            Whether it is: not in a second thread (of another device) beside a first one.
        """
        if not self._lent.acquire(blocking=False):
            yield False
            return
        earlier = self.depth, self.thread
        self.depth, self.thread = 0, get_ident()
        try:
            yield True
        finally:
            self.depth, self.thread = earlier
            self._lent.release()

    def turn_off(self, *_: Any) -> None:
        self.active = False
        self.replaying = False


def has_compiled() -> bool:
    """Whether anything was compiled in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters["frames"])


_EVALUATOR: Any = torch._C._dynamo.eval_frame
_FAKE, _PROXY = torch._C._TorchDispatchModeKey.FAKE, torch._C._TorchDispatchModeKey.PROXY
_WHERE_COMPILED_CODE_BEGINS = "/torch/_dynamo/eval_frame.py"

Function = TypeVar("Function", bound=Callable[..., Any])


def outside_dynamo(function: Function) -> Function:
    """Marks a function, and returns it, so that no compiled code ever contains it.

    The tracer breaks its graph before a call of it, as for `torch.compiler.disable`, and neither
    it nor what it calls is compiled where it is run within a compiled function. It costs nothing
    at its calls.
    """
    marked: Any = function
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = "training-supervisor looks at the training here"
    return run_plainly(function)


def run_plainly(function: Function) -> Function:
    """As `outside_dynamo`, for a function that may be traced: it then does what torch's own does.

    What tells it so is `torch.compiler.is_dynamo_compiling`.
    """
    code = getattr(function, "__code__")  # noqa: B009
    if not hasattr(_EVALUATOR, "set_code_exec_strategy"):  # torch before 2.7
        _EVALUATOR.skip_code(code)
        return _without_tracer(function)
    skip = _EVALUATOR._FrameAction.SKIP
    strategy = _EVALUATOR._FrameExecStrategy(skip, skip)
    _EVALUATOR.set_code_exec_strategy(code, strategy)
    return function


def _without_tracer(function: Function) -> Function:
    """Returns it with what it calls left alone, too: torch before 2.7 skips one function only."""

    @functools.wraps(function)
    def alone(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return function(*args, **kwargs)
        earlier = _EVALUATOR.set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            _EVALUATOR.set_eval_frame(earlier)

    marked: Any = alone
    _EVALUATOR.skip_code(marked.__code__)
    return cast("Function", marked)


def forget_compiled() -> None:
    """Has everything compiled anew that is called from here on; nothing where nothing was.

    Called when the state of an optimizer was put back: code that was compiled while its updates
    did nothing holds what its state was then. And behind a replay of several ranks, in which torch
    has found that nothing can be compiled.
    """
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()


def is_within_compiled() -> bool:
    """Whether the caller is called, at whatever depth, by a function that torch.compile made."""
    frame = sys._getframe(1) if "torch._dynamo" in sys.modules else None
    while frame is not None:
        if frame.f_code.co_filename.endswith(_WHERE_COMPILED_CODE_BEGINS):
            return True
        frame = frame.f_back
    return False


def is_transforming() -> bool:
    """Whether tensors stand for others: in a transform of torch.func (vmap, grad, jvp), while torch
    traces a module (`torch.jit.trace`, `make_fx`), or where they have no values."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._get_tracing_state() is not None
        or torch._C._get_dispatch_mode(_FAKE) is not None
        or torch._C._get_dispatch_mode(_PROXY) is not None
    )
