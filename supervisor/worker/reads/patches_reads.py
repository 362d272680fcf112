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

from supervisor.storage.steps.tape import EntryKind
from supervisor.worker.core.interception_state import InterceptionState, outside_dynamo, run_plainly
from supervisor.worker.core.part import Sides
from supervisor.worker.core.training_hooks import ScriptReads

MAX_LISTED = 256
"""Elements up to which `tolist` and `numpy` are recorded as they are; of more, the tensor is."""


def watch_reads(interception: InterceptionState, reads: Sides[ScriptReads]) -> None:
    """Patches torch for the rest of this process's life. Called once, after `instrument`."""
    for name, kind in (
        ("__float__", EntryKind.FLOAT),
        ("__int__", EntryKind.INT),
        ("__index__", EntryKind.INT),
        ("__bool__", EntryKind.BOOL),
    ):
        _patch_method(interception, reads, name, kind)
    _patch_item(interception, reads)
    _patch_listing(interception, reads)
    for name in ("equal", "allclose", "is_nonzero"):
        _patch_comparison(interception, reads, torch, name)
        _patch_comparison(interception, reads, torch.Tensor, name)


def _once(interception: InterceptionState, call: Callable[..., Any], *args: Any, **kw: Any) -> Any:
    """Calls what reads a value: where a class derived from torch's has a `__torch_function__`, that
    is given the patched function once more, and its reads belong to this one."""
    interception.depth += 1
    try:
        return call(*args, **kw)
    finally:
        interception.depth -= 1


def _patch_method(
    interception: InterceptionState, reads: Sides[ScriptReads], name: str, kind: EntryKind
) -> None:
    original = getattr(torch.Tensor, name)

    @outside_dynamo
    @functools.wraps(original)
    def read(self: torch.Tensor) -> Any:
        if interception.depth or not interception.is_ours():
            return original(self)
        return reads.now.read(kind, functools.partial(_once, interception, original, self))

    setattr(torch.Tensor, name, read)


def _patch_item(interception: InterceptionState, reads: Sides[ScriptReads]) -> None:
    original = torch.Tensor.item

    @outside_dynamo
    @functools.wraps(original)
    def item(self: torch.Tensor) -> Any:
        if interception.depth or not interception.is_ours():
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
        return reads.now.read(kind, functools.partial(_once, interception, original, self))

    torch.Tensor.item = item  # type: ignore[method-assign, assignment]
    _spare_optimizers(interception, original)


def _spare_optimizers(interception: InterceptionState, item: Callable[[torch.Tensor], Any]) -> None:
    """Torch's optimizers read the step count of each parameter at every update: these reads are
    not the script's, and do not go through the patched `Tensor.item`."""
    original = sys.modules["torch.optim.optimizer"]._get_value

    @functools.wraps(original)
    def get_value(x: Any) -> Any:
        # In this order: a compiled optimizer must not depend on what we count.
        if is_dynamo_compiling() or not interception.depth or not isinstance(x, torch.Tensor):
            return original(x)
        return item(x)

    for name, module in list(sys.modules.items()):
        if name.startswith("torch.optim.") and vars(module).get("_get_value") is original:
            vars(module)["_get_value"] = get_value


def _patch_listing(interception: InterceptionState, reads: Sides[ScriptReads]) -> None:

    for name in ("tolist", "numpy"):
        original = getattr(torch.Tensor, name)

        @outside_dynamo
        @functools.wraps(original)
        def read(self: torch.Tensor, *args: Any, _original: Any = original, **kwargs: Any) -> Any:
            if interception.depth or not interception.is_ours():
                return _original(self, *args, **kwargs)
            with DisableTorchFunctionSubclass():
                is_large = self.numel() > MAX_LISTED
            if is_large:
                value = _original(self, *args, **kwargs)
                recorded = reads.now.read_all(self)
                return value if recorded is None else _original(recorded, *args, **kwargs)
            call = functools.partial(_once, interception, _original, self, *args, **kwargs)
            return reads.now.read(EntryKind.ARRAY, call)

        setattr(torch.Tensor, name, read)


def _patch_comparison(
    interception: InterceptionState, reads: Sides[ScriptReads], owner: Any, name: str
) -> None:
    """`torch.equal(a, b)` and `a.equal(b)`."""
    original = getattr(owner, name)

    @run_plainly
    @functools.wraps(original)
    def read(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling() or not interception.is_ours():
            return original(*args, **kwargs)
        call = functools.partial(_once, interception, original, *args, **kwargs)
        return reads.now.read(EntryKind.BOOL, call)

    setattr(owner, name, read)


_WAYS_OUT = {
    **{"numpy": MAX_LISTED, "tolist": MAX_LISTED, "__repr__": 1},
    **{"__dlpack__": 0, "__reduce_ex__": 0, "untyped_storage": 0, "storage": 0},
}
"""Methods, and of how many elements the tape holds what they give."""


def watch_ways_out(asked: Callable[[torch.Tensor, str], None]) -> Callable[[], None]:
    """Has `asked` called before each of these methods; returns what takes the patches back.

    Called after `watch_reads`, for the time of a replay.
    """
    originals = {name: getattr(torch.Tensor, name) for name in _WAYS_OUT}
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
        if tensor.numel() > _WAYS_OUT[name]:
            asked(tensor, name)
        return original(tensor, *args, **kwargs)

    return read
