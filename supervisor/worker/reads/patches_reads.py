"""The patches by which every value that the script reads out of a tensor is seen.

The control flow of a training depends on its tensors through these functions alone, so recording
their results is what makes a replay without tensors take the same way.

The patches by which a replay sees values leave a tensor without any operation of torch.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._C import DisableTorchFunctionSubclass
from torch.compiler import is_dynamo_compiling

from supervisor.storage.steps.replay_log import EntryKind
from supervisor.worker.core.call_state import CallState, outside_dynamo, run_plainly
from supervisor.worker.core.part import Sides
from supervisor.worker.core.training_hooks import ScriptReads

MAX_LISTED = 256
"""Elements up to which `tolist` and `numpy` are recorded as they are; of more, the tensor is."""


def watch_reads(call_state: CallState, reads: Sides[ScriptReads]) -> None:
    """Patches torch for the rest of this process's life. Called once, after `instrument`."""
    for name, kind in (
        ("__float__", EntryKind.FLOAT),
        ("__int__", EntryKind.INT),
        ("__index__", EntryKind.INT),
        ("__bool__", EntryKind.BOOL),
    ):
        _patch_method(call_state, reads, name, kind)
    _patch_item(call_state, reads)
    _patch_listing(call_state, reads)
    for name in ("equal", "allclose", "is_nonzero"):
        _patch_comparison(call_state, reads, torch, name)
        _patch_comparison(call_state, reads, torch.Tensor, name)


def _once(call_state: CallState, call: Callable[..., Any], *args: Any, **kw: Any) -> Any:
    """Calls what reads a value: where a class derived from torch's has a `__torch_function__`, that
    is given the patched function once more, and its reads belong to this one."""
    call_state.depth += 1
    try:
        return call(*args, **kw)
    finally:
        call_state.depth -= 1


def _patch_method(
    call_state: CallState, reads: Sides[ScriptReads], name: str, kind: EntryKind
) -> None:
    original = getattr(torch.Tensor, name)

    @outside_dynamo
    @functools.wraps(original)
    def read(self: torch.Tensor) -> Any:
        if call_state.depth or not call_state.is_ours():
            return original(self)
        return reads.now.read(kind, functools.partial(_once, call_state, original, self))

    setattr(torch.Tensor, name, read)


def _patch_item(call_state: CallState, reads: Sides[ScriptReads]) -> None:
    original = torch.Tensor.item

    @outside_dynamo
    @functools.wraps(original)
    def item(self: torch.Tensor) -> Any:
        if call_state.depth or not call_state.is_ours():
            return original(self)
        with DisableTorchFunctionSubclass():
            dtype = self.dtype
        if dtype.is_floating_point:
            kind = EntryKind.FLOAT
        elif dtype is torch.bool:
            kind = EntryKind.BOOL
        elif dtype.is_complex:
            return original(self)
        else:
            kind = EntryKind.INT
        return reads.now.read(kind, functools.partial(_once, call_state, original, self))

    torch.Tensor.item = item  # type: ignore[method-assign, assignment]
    _spare_optimizers(call_state, original)


def _spare_optimizers(call_state: CallState, item: Callable[[torch.Tensor], Any]) -> None:
    """Torch's optimizers read the step count of each parameter at every update: these reads are
    not the script's, and do not go through the patched `Tensor.item`."""
    original = sys.modules["torch.optim.optimizer"]._get_value

    @functools.wraps(original)
    def get_value(x: Any) -> Any:
        # In this order: a compiled optimizer must not depend on what we count.
        if is_dynamo_compiling() or not call_state.depth or not isinstance(x, torch.Tensor):
            return original(x)
        return item(x)

    for name, module in list(sys.modules.items()):
        if name.startswith("torch.optim.") and vars(module).get("_get_value") is original:
            vars(module)["_get_value"] = get_value


def _patch_listing(call_state: CallState, reads: Sides[ScriptReads]) -> None:

    for name in ("tolist", "numpy"):
        original = getattr(torch.Tensor, name)

        @outside_dynamo
        @functools.wraps(original)
        def read(self: torch.Tensor, *args: Any, _original: Any = original, **kwargs: Any) -> Any:
            if call_state.depth or not call_state.is_ours():
                return _original(self, *args, **kwargs)
            with DisableTorchFunctionSubclass():
                is_large = self.numel() > MAX_LISTED
            if is_large:
                value = _original(self, *args, **kwargs)
                recorded = reads.now.read_all(self)
                return value if recorded is None else _original(recorded, *args, **kwargs)
            call = functools.partial(_once, call_state, _original, self, *args, **kwargs)
            return reads.now.read(EntryKind.ARRAY, call)

        setattr(torch.Tensor, name, read)


def _patch_comparison(
    call_state: CallState, reads: Sides[ScriptReads], owner: Any, name: str
) -> None:
    """`torch.equal(a, b)` and `a.equal(b)`."""
    original = getattr(owner, name)

    @run_plainly
    @functools.wraps(original)
    def read(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling() or not call_state.is_ours():
            return original(*args, **kwargs)
        call = functools.partial(_once, call_state, original, *args, **kwargs)
        return reads.now.read(EntryKind.BOOL, call)

    setattr(owner, name, read)


_STORAGE_ACCESS = {
    **{"numpy": MAX_LISTED, "tolist": MAX_LISTED, "__repr__": 1},
    **{"__dlpack__": 0, "__reduce_ex__": 0, "untyped_storage": 0, "storage": 0},
}
"""Methods, and of how many elements the replay log holds what they give."""


def watch_storage_access(asked: Callable[[torch.Tensor, str], None]) -> Callable[[], None]:
    """Has `asked` called before each of these methods; returns what takes the patches back.

    Called after `watch_reads`, for the time of a replay.
    """
    originals = {name: getattr(torch.Tensor, name) for name in _STORAGE_ACCESS}
    for name, original in originals.items():
        setattr(torch.Tensor, name, _asking(name, original, asked))

    def restore() -> None:
        for name, original in originals.items():
            setattr(torch.Tensor, name, original)

    return restore


def _asking(
    name: str, original: Callable[..., Any], asked: Callable[[torch.Tensor, str], None]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def read(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if tensor.numel() > _STORAGE_ACCESS[name]:
            asked(tensor, name)
        return original(tensor, *args, **kwargs)

    return read
