"""Turns what `state_dict` methods return into tensors and plain containers, and back.

Plain values are None, bool, int, float, str, tensors, and lists, tuples and dicts of them: what
``torch.load(weights_only=True)`` reads. Everything else becomes a dict with the key ``__kind__``;
classes are looked up among imported modules only.

Says why a saved state does not fit, before the first tensor is written.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import pathlib
import random
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from supervisor.errors import CheckpointError
from supervisor.training_state.tensors import local

KIND = "__kind__"
_SCALARS = (bool, int, float, str)
_FACTORIES: dict[str, Callable[[], Any]] = {
    kind.__name__: kind for kind in (int, float, list, dict, set, str, bool)
}
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_DEPTH_LIMIT = 32


def to_plain(value: Any, where: str, left_out: list[str], depth: int = 0) -> Any:
    """Returns `value` in plain form; tensors and the memory of arrays are shared, not copied.

    Args:
        value: what is to be saved.
        where: the name of `value` for messages, such as ``tracked ema``.
        left_out: gets one line for each value without a plain form, which becomes None.
        depth: of nesting; past 32 it is taken for a cycle and left out.
    """
    if value is None or type(value) in _SCALARS:
        return value
    if isinstance(value, torch.Tensor):
        is_known = type(value) in _TENSORS or hasattr(value, "to_local")
        return value if is_known else local(value)  # other classes cannot be read again
    if depth > _DEPTH_LIMIT:
        left_out.append(f"{where}: nested deeper than {_DEPTH_LIMIT}")
        return None

    def inner(item: Any, key: Any) -> Any:
        return to_plain(item, f"{where}[{key!r}]", left_out, depth + 1)

    if type(value) in (list, tuple):
        return type(value)(inner(item, index) for index, item in enumerate(value))
    if isinstance(value, dict):
        return _dict_to_plain(value, where, left_out, depth)
    if isinstance(value, (np.ndarray, np.generic)):
        return _array_to_plain(value, where, left_out)
    if isinstance(value, collections.deque):
        items = [inner(item, index) for index, item in enumerate(value)]
        return {KIND: "deque", "items": items, "maxlen": value.maxlen}
    if isinstance(value, (set, frozenset)):
        items = [inner(item, item) for item in sorted(value, key=repr)]
        return {KIND: type(value).__name__, "items": items}
    if isinstance(value, (bytes, bytearray)):
        data = torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else torch.empty(0)
        return {KIND: type(value).__name__, "data": data.to(torch.uint8)}
    return _object_to_plain(value, where, left_out, inner)


def _dict_to_plain(value: dict[Any, Any], where: str, left_out: list[str], depth: int) -> Any:
    items = {
        key: item
        if type(item) in _SCALARS or isinstance(item, torch.Tensor)
        else to_plain(item, f"{where}[{key!r}]", left_out, depth + 1)
        for key, item in value.items()
    }
    keys_plain = all(key is None or type(key) in _SCALARS for key in items)
    if type(value) is dict and keys_plain and KIND not in items:
        return items
    pairs = [
        [to_plain(key, f"key of {where}", left_out, depth + 1), item] for key, item in items.items()
    ]
    form = {KIND: "dict", "items": pairs}
    if isinstance(value, collections.OrderedDict):
        form[KIND] = "ordered_dict"
    elif isinstance(value, collections.Counter):
        form[KIND] = "counter"
    elif isinstance(value, collections.defaultdict):
        factory = getattr(value.default_factory, "__name__", "")
        if factory in _FACTORIES:
            form |= {KIND: "defaultdict", "factory": factory}
    return form


def _array_to_plain(value: np.ndarray[Any, Any] | np.generic, where: str, out: list[str]) -> Any:
    array = np.asarray(value)
    if array.dtype.hasobject or array.dtype.names:
        out.append(f"{where}: NumPy array of dtype {array.dtype}")
        return None
    flat = np.ascontiguousarray(array).reshape(-1)
    if not flat.flags.writeable:
        flat = flat.copy()
    data = torch.from_numpy(flat.view(np.uint8)) if flat.size else torch.empty(0, dtype=torch.uint8)
    return {
        KIND: "array" if isinstance(value, np.ndarray) else "array_scalar",
        "dtype": array.dtype.str,
        "shape": list(array.shape),
        "data": data,
    }


def _object_to_plain(
    value: Any, where: str, left_out: list[str], inner: Callable[[Any, Any], Any]
) -> Any:
    kind = type(value)
    named = {"module": kind.__module__, "class": kind.__qualname__}
    if isinstance(value, enum.Enum):
        return {KIND: "enum", **named, "name": value.name}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        items = [inner(item, index) for index, item in enumerate(value)]
        return {KIND: "namedtuple", **named, "items": items}
    if dataclasses.is_dataclass(value):
        names = [f.name for f in dataclasses.fields(value) if hasattr(value, f.name)]
        fields = {name: inner(getattr(value, name), name) for name in names}
        return {KIND: "dataclass", **named, "fields": fields}
    if isinstance(value, torch.Size):
        return {KIND: "torch_size", "items": list(value)}
    if isinstance(value, torch.dtype):
        return {KIND: "torch_dtype", "name": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {KIND: "torch_device", "name": str(value)}
    if isinstance(value, pathlib.PurePath):
        return {KIND: "path", "name": str(value)}
    if isinstance(value, complex):
        return {KIND: "complex", "parts": [value.real, value.imag]}
    bases: tuple[Callable[[Any], Any], ...] = (*_SCALARS, list, tuple)
    for base in bases:
        if isinstance(value, base):  # type: ignore[arg-type]  # one of the script's own kinds
            return to_plain(base(value), where, left_out)
    left_out.append(
        f"{where}: {kind.__module__}.{kind.__qualname__} cannot be saved without pickle"
    )
    return None


def from_plain(value: Any) -> Any:
    """The inverse of `to_plain`; a class that is not imported becomes a dict or tuple."""
    if isinstance(value, (list, tuple)):
        return type(value)(from_plain(item) for item in value)
    if not isinstance(value, dict):
        return as_in_code(value)
    kind = value.get(KIND)
    if kind is None:
        return {as_in_code(key): from_plain(item) for key, item in value.items()}
    return _BUILDERS[kind](value) if kind in _BUILDERS else None


def as_in_code(value: Any) -> Any:
    """Returns the one object that Python has for a word that stands in code, such as ``"step"``: a
    pickle of the script's shows which of its words are one object. Anything else as it is."""
    if type(value) is str and value.isascii() and value.replace("_", "a").isalnum():
        return sys.intern(value)
    return value


def _items(form: dict[str, Any]) -> list[Any]:
    return [from_plain(item) for item in form["items"]]


def _array(form: dict[str, Any]) -> Any:
    data = form["data"].detach().cpu().contiguous().numpy().tobytes()
    return np.frombuffer(data, dtype=np.dtype(form["dtype"])).reshape(form["shape"]).copy()


def _imported(form: dict[str, Any]) -> Any:
    found: Any = sys.modules.get(form["module"])
    for part in form["class"].split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None


def _enum(form: dict[str, Any]) -> Any:
    kind = _imported(form)
    if kind is not None and issubclass(kind, enum.Enum) and form["name"] in kind.__members__:
        return kind[form["name"]]
    return form["name"]


def _namedtuple(form: dict[str, Any]) -> Any:
    kind, items = _imported(form), _items(form)
    if (
        kind is not None
        and issubclass(kind, tuple)
        and len(getattr(kind, "_fields", ())) == len(items)
    ):
        return tuple.__new__(kind, items)
    return tuple(items)


def _dataclass(form: dict[str, Any]) -> Any:
    kind = _imported(form)
    fields = {name: from_plain(item) for name, item in form["fields"].items()}
    if kind is None or not dataclasses.is_dataclass(kind):
        return fields
    built: Any = object.__new__(kind)  # type: ignore[arg-type]
    for name, item in fields.items():
        object.__setattr__(built, name, item)
    return built


_BUILDERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "dict": lambda form: dict(_items(form)),
    "ordered_dict": lambda form: collections.OrderedDict(_items(form)),
    "counter": lambda form: collections.Counter(dict(_items(form))),
    "defaultdict": lambda form: collections.defaultdict(_FACTORIES[form["factory"]], _items(form)),
    "deque": lambda form: collections.deque(_items(form), maxlen=form["maxlen"]),
    "set": lambda form: set(_items(form)),
    "frozenset": lambda form: frozenset(_items(form)),
    "bytes": lambda form: form["data"].numpy().tobytes(),
    "bytearray": lambda form: bytearray(form["data"].numpy().tobytes()),
    "array": _array,
    "array_scalar": lambda form: _array(form)[()],
    "enum": _enum,
    "namedtuple": _namedtuple,
    "dataclass": _dataclass,
    "torch_size": lambda form: torch.Size(form["items"]),
    "torch_dtype": lambda form: getattr(torch, form["name"]),
    "torch_device": lambda form: torch.device(form["name"]),
    "path": lambda form: pathlib.Path(form["name"]),
    "complex": lambda form: complex(*form["parts"]),
}


_ORDINARY = (torch.Tensor, torch.nn.Parameter)
_OVERLAPS = 1
"""Torch's code for an expanded tensor, which can be read but not written."""

_BY_GROUP = ("base_lrs", "_last_lr", "_schedulers", "lr_lambdas")
"""Lists in torch's schedules with one entry per group, or per schedule within."""


def restore_problem(target: torch.Tensor, saved: torch.Tensor) -> str:
    """Returns why `saved` cannot be written into `target` of the same shape; empty if it can.

    Another precision fits (the FP32 fallback needs it) unless values would become infinite.
    """
    if target.layout != saved.layout:
        return f"{_short(saved.layout)} in the checkpoint, {_short(target.layout)} now"
    if target.dtype != saved.dtype and not (
        target.is_floating_point() and saved.is_floating_point()
    ):
        return f"{_short(saved.dtype)} in the checkpoint, {_short(target.dtype)} now"
    if target.device.type == "meta":
        return "it is on the device meta now, where nothing can be written"
    if type(target) in _ORDINARY and target.layout == torch.strided and target.numel():
        if target.untyped_storage().nbytes() < _end(target):
            return "its memory has been freed"
        if torch._debug_has_internal_overlap(target) == _OVERLAPS:
            return "its elements share their memory"
    if target.dtype != saved.dtype and saved.numel():
        largest = float(saved.detach().abs().max())
        if torch.finfo(target.dtype).max < largest < float("inf"):
            return f"{largest:g} in the checkpoint is too large for {_short(target.dtype)}"
    return ""


def check_tensor(where: str, target: torch.Tensor, saved: torch.Tensor) -> None:
    """Raises CheckpointError if `saved` cannot be written into `target`."""
    why = restore_problem(target, saved)
    if why:
        raise CheckpointError(f"{where}: {why}: restore the model's code or its arguments")


def check_parts(state: Mapping[str, Any], parts: Iterable[str], models: Iterable[str]) -> None:
    """Raises CheckpointError if something is missing that a model has."""
    for part in parts:
        for name in models:
            if name not in state.get(part, {}):
                raise CheckpointError(f"{name}: the checkpoint does not hold its {part}")


def check_scaler(where: str, scaler: Any, saved: Mapping[str, Any]) -> None:
    """Raises CheckpointError if the tensors of `saved` cannot be written into those of `scaler`."""
    for name, value in saved.items():
        live = getattr(scaler, name, None)
        if isinstance(value, torch.Tensor) and isinstance(live, torch.Tensor):
            if live.shape != value.shape:
                raise CheckpointError(f"{where}: {name} has another shape in the checkpoint")
            check_tensor(f"{where}: {name}", live, value)


def check_schedule(where: str, schedule: Any, saved: Any) -> None:
    """Raises CheckpointError if `saved` is of a schedule over other groups or other schedules."""
    if not isinstance(saved, dict):
        return
    for name in _BY_GROUP:
        live, then = getattr(schedule, name, None), saved.get(name)
        if isinstance(live, list) and isinstance(then, list) and len(live) != len(then):
            raise CheckpointError(
                f"{where}: {name} has {len(then)} entries in the checkpoint, {len(live)} in the "
                "script: build the schedule as the run did"
            )


def check_random(state: Mapping[str, Any]) -> None:
    """Raises CheckpointError if a generator would refuse its state; others try it in its place."""
    python, numpy, on_host = (state.get(name) for name in ("python", "numpy", "torch"))
    try:
        if python is not None:
            words = tuple(python["words"].numpy().tolist())
            random.Random().setstate((python["version"], words, python["gauss"]))
        if numpy is not None:
            np.random.RandomState().set_state(from_plain(numpy))
        if on_host is not None:
            torch.Generator().set_state(on_host.cpu())
        if torch.cuda.is_available():
            for one in (state.get("cuda") or [])[: torch.cuda.device_count()]:
                torch.Generator(device="cuda").set_state(one.cpu())
    except Exception as error:
        raise CheckpointError(
            f"random generators: {type(error).__name__}: {error}: their states in the checkpoint "
            "are of another version of Python, NumPy or torch"
        ) from error


def _end(tensor: torch.Tensor) -> int:
    """The end of its last element in its storage, in bytes."""
    places = zip(tensor.shape, tensor.stride(), strict=True)
    last = tensor.storage_offset() + sum((size - 1) * stride for size, stride in places)
    return int(last + 1) * tensor.element_size()


def _short(value: Any) -> str:
    return str(value).removeprefix("torch.")
