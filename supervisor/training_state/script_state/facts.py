"""What is known of a value, as a short text: equal texts, equal values, in every process."""

from __future__ import annotations

import collections
import json
import pathlib
import random
import re
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import xxhash

from supervisor.training_state.script_state.inside_containers import (
    SCALARS,
    added_in_order,
    content,
    key_name,
)
from supervisor.training_state.script_state.inside_objects import FRAMES, is_cache
from supervisor.training_state.script_state.place import Place
from supervisor.training_state.script_state.single_values import (
    SINGLE,
    SINGLE_KINDS,
    is_iterator,
    is_memory,
    is_module,
    memory_fact,
    own_variables,
    position,
    single,
    single_of,
)
from supervisor.training_state.tensors import bytes_of

KEPT_BYTES = 16_384
"""Of a plain container: longer ones are compared by checksum, and cannot be put back. 1,500 numbers
take so much."""
KEPT_LETTERS = 1_000
COMPARED_BYTES = 65_536
"""Of a tensor or array: about 5 us. Larger ones are compared by shape and type, and their content
is saved with the checkpoint where it changes."""
_CONTAINERS: dict[str, Callable[[Any], Any]] = {
    **{kind.__name__: kind for kind in (list, tuple, set, frozenset, dict)},
    "deque": collections.deque,
    "OrderedDict": collections.OrderedDict,
    "Counter": collections.Counter,
    "defaultdict": collections.defaultdict,
}
_FACTORIES: dict[str, Any] = {
    "None": None,
    **{kind.__name__: kind for kind in (list, dict, set, tuple, int, float, str, bool)},
    **{kind.__name__: kind for kind in (collections.Counter, collections.deque)},
}
"""What a `defaultdict` may make, by name; what others make is known from a live one alone."""
_PATHS: dict[str, Callable[[str], pathlib.PurePath]] = {
    kind.__name__: kind
    for kind in (type(pathlib.Path()), pathlib.PurePosixPath, pathlib.PureWindowsPath)
}
TEMPORARY = "temporary "
"""Begins the fact of a temporary file or folder; its name is another in each process."""
_WITH_GRADIENT = " with gradient"
_TENSOR = re.compile(rf"tensor \w+ \[[\d, ]*\] \w+({_WITH_GRADIENT})?")
_NUMBER = re.compile(
    r"number (?P<kind>bool|u?int\d+|float\d+) (np\.)?(\w+\()?(?P<value>[\w.+-]+?)_?\)?"
)
_ENTERED = re.compile(r"\w+ of \d+( by \w+)?")
UNSEEN = "(out of sight)"
"""Ends the fact of an iterator that does not tell where it stands."""
_SAME = "the object at "
_IN_C: dict[str, Callable[[Any], Any]] = {
    "sqlite3.Connection": lambda database: database.total_changes,
    "numpy.random.bit_generator.SeedSequence": lambda seeds: json.dumps(
        _without_arrays(seeds.state)
    ),
    "numpy.flatiter": lambda items: items.index,
    "numpy.nditer": lambda items: items.iterindex,
    "zlib.Compress": lambda stream: _digest(stream.copy().flush()),
    **dict.fromkeys(
        ("_hashlib.HASH", "_hashlib.HMAC", "_blake2.blake2b", "_blake2.blake2s"),
        lambda digest: digest.hexdigest(),
    ),
    **dict.fromkeys(
        ("_md5.md5", "_sha1.sha1", "_sha2.SHA256Type"), lambda digest: digest.hexdigest()
    ),
}
"""Kinds of objects of C code → what tells their state."""
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType)
_WORK = torch.distributed.Work if torch.distributed.is_available() else None
_FLOATS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


class CannotPutBack(Exception):
    """A fact does not hold the value itself."""


def fact_of(place: Place) -> str:
    """Returns the fact of the value in `place`."""
    value = place.value
    kind = type(value)
    if kind in SCALARS:
        return _scalar(value)
    if place.same_as:
        return _SAME + place.same_as
    if kind in _LAYERS:
        return _LAYERS[kind]
    if place.is_plain:
        return _plain(value)
    if is_module(value):
        return f"{kind.__name__} {own_variables(value).get('__name__')}"
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, np.ndarray):
        return f"array {value.dtype} {list(value.shape)} {_checksum(value)}"
    if isinstance(value, np.generic):
        return f"number {value.dtype} {value!r}"
    if isinstance(value, SINGLE):
        return single(value)
    if isinstance(value, memoryview):
        return f"memoryview {value.format} {list(value.shape or ())} {_digest(value.tobytes())}"
    if is_cache(kind):
        known = value.cache_info()
        return f"cache of {known.currsize} after {known.misses} misses"
    if isinstance(value, (int, float, complex, str, bytes)):
        base = next(one for one in kind.__mro__ if one in SCALARS)
        return f"{kind.__qualname__} {_scalar(base(value))}"
    if isinstance(value, (pathlib.PurePath, torch.dtype, torch.device, np.dtype)):
        return f"{kind.__name__} {value}"
    if is_memory(value):
        return memory_fact(value)
    if is_generator(value):
        return f"{_GENERATOR}{kind.__name__} {json.dumps(generator_state(value))}"
    if isinstance(value, (list, tuple, collections.deque, set, frozenset)):
        return f"{kind.__name__} of {len(value)}"
    if isinstance(value, dict):
        names = "\n".join(key_name(key, number) for number, key in enumerate(dict.keys(value)))
        return f"{kind.__name__} of {len(value)} by {_digest(names)}"
    if kind in FRAMES:
        frame = getattr(value, FRAMES[kind])
        at = "ended" if frame is None else frame.f_lasti
        return f"{kind.__name__} {value.__qualname__} {at}"
    if _WORK is not None and isinstance(value, _WORK):
        return "work of a collective"  # a replay sends nothing, so another class stands for it
    if is_iterator(kind):
        return f"{kind.__name__} {_position(value)}"
    if kind.__module__ == "tempfile":
        return f"{TEMPORARY}{getattr(value, 'name', '')}"
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name in _IN_C:
        return f"{kind.__qualname__} {_IN_C[name](value)}"
    if isinstance(value, _NAMED):
        return f"{kind.__name__} {value.__qualname__}"
    if isinstance(value, torch.nn.Module) and name.startswith("torch.nn."):
        _LAYERS[kind] = f"a {name}"
    return f"a {name}"


_LAYERS: dict[type, str] = {}
"""Torch's classes of modules of which nothing else is told → the fact: a model has thousands."""


def is_unseen(fact: str) -> bool:
    """Whether it is that of an iterator that does not tell where it stands."""
    return fact.endswith(UNSEEN)


def same_as(fact: str) -> str:
    """Path of the place where the same object lies; empty if the fact is that of a first place."""
    return fact.removeprefix(_SAME) if fact.startswith(_SAME) else ""


def is_entered(fact: str) -> bool:
    """Whether it is that of a container whose items have facts of their own."""
    return _ENTERED.fullmatch(fact) is not None


def value_of(fact: str, live: Any = None) -> Any:
    """Returns the value that a fact of `fact_of` holds.

    Args:
        fact: what is known of it.
        live: what lies in its place: a `defaultdict` goes on making what that one makes.

    Raises:
        CannotPutBack: it holds a checksum, or only the type.
    """
    head, _, rest = fact.partition(" ")
    if head == "=":
        form = json.loads(rest)
        if isinstance(live, collections.defaultdict) and _is_defaultdict(form):
            found = _from_json({**form, "": "dict"})
            return collections.defaultdict(live.default_factory, found)
        return _from_json(form)
    if head in _PATHS:
        return _PATHS[head](rest)
    if number := _NUMBER.fullmatch(fact):
        kind = np.dtype(number["kind"])
        return kind.type(number["value"] == "True" if kind.kind == "b" else number["value"])
    raise CannotPutBack


def is_generator(value: Any) -> bool:
    """Whether it is a random number generator."""
    return isinstance(
        value, (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
    )


_GENERATOR = "random numbers of a "


def generator_state(value: Any) -> Any:
    """The state of a random number generator, as JSON holds it."""
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes().hex()
    if isinstance(value, random.Random):
        return _to_json(value.getstate())
    if isinstance(value, np.random.RandomState):
        state: Any = value.get_state(legacy=False)
    else:
        state = value.bit_generator.state
    return _to_json(_without_arrays(state))


def holds_generator_state(fact: str) -> bool:
    """Whether `put_generator_back` can do something with it."""
    return fact.startswith(_GENERATOR)


def put_generator_back(value: Any, fact: str) -> None:
    """Sets a random number generator to the state of a fact.

    Raises:
        ValueError: it is another kind of generator.
    """
    kind, _, text = fact.removeprefix(_GENERATOR).partition(" ")
    if kind != type(value).__name__:
        raise ValueError(f"a {kind} in the checkpoint, a {type(value).__name__} now")
    state = json.loads(text)
    if isinstance(value, torch.Generator):
        value.set_state(torch.frombuffer(bytearray.fromhex(state), dtype=torch.uint8))
    elif isinstance(value, random.Random):
        value.setstate(_from_json(state))
    elif isinstance(value, np.random.RandomState):
        value.set_state(_from_json(state))
    else:
        value.bit_generator.state = _from_json(state)


def _scalar(value: Any) -> str:
    if type(value) is bool or type(value) is int:  # nearly all
        return f"= {str(value).lower()}"
    if isinstance(value, (str, bytes)) and len(value) > KEPT_LETTERS:
        return f"{type(value).__name__} of {len(value)} {_digest(value)}"
    return f"= {json.dumps(_to_json(value))}"


def _digest(text: str | bytes) -> str:
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    return xxhash.xxh3_64_hexdigest(data)


def _plain(value: Any) -> str:
    data = content(value)
    kind = type(value).__name__
    if len(data) <= KEPT_BYTES and kind in _CONTAINERS:
        return f"= {json.dumps(_to_json(value))}"
    return f"{kind} of {len(value)} {xxhash.xxh3_64_hexdigest(data)}"


def _to_json(value: Any) -> Any:
    """Plain values as JSON; what JSON does not know becomes ``{"": kind, ...}``."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if value - value == 0.0 else {"": "float", "is": repr(value)}
    if kind is list:
        return [_to_json(item) for item in value]
    if kind is dict and all(type(key) is str for key in value) and "" not in value:
        return {key: _to_json(item) for key, item in value.items()}
    if kind is bytes:
        return {"": "bytes", "is": value.hex()}
    if kind is complex:
        return {"": "complex", "is": [_to_json(value.real), _to_json(value.imag)]}
    if isinstance(value, dict):
        pairs = [[_to_json(key), _to_json(item)] for key, item in value.items()]
        known = {"makes": _made_by(value)} if isinstance(value, collections.defaultdict) else {}
        return {"": kind.__name__, "is": pairs, **known}
    items = [_to_json(item) for item in value]  # of a set in the order of a loop over it
    form = {"": kind.__name__, "is": items}
    if kind is collections.deque and value.maxlen is not None:
        form["maxlen"] = value.maxlen
    return form


def _from_json(form: Any) -> Any:
    if isinstance(form, list):
        return [_from_json(item) for item in form]
    if not isinstance(form, dict):
        return form
    kind = form.get("")
    if kind is None:
        return {key: _from_json(item) for key, item in form.items()}
    inner = form["is"]
    if kind == "float":
        return _FLOATS[inner]
    if kind == "bytes":
        return bytes.fromhex(inner)
    if kind == "complex":
        return complex(*_from_json(inner))
    if kind == "deque":
        return collections.deque(_from_json(inner), form.get("maxlen"))
    if kind in ("dict", "OrderedDict", "Counter"):
        return _CONTAINERS[kind]({_from_json(key): _from_json(item) for key, item in inner})
    if kind == "defaultdict":
        if form["makes"] not in _FACTORIES:
            raise CannotPutBack
        pairs = {_from_json(key): _from_json(item) for key, item in inner}
        return collections.defaultdict(_FACTORIES[form["makes"]], pairs)
    if kind in SINGLE_KINDS:
        return single_of(kind, inner)
    if kind in ("set", "frozenset"):
        return _CONTAINERS[kind](added_in_order(_from_json(inner)))
    return _CONTAINERS[kind](_from_json(inner))


def _is_defaultdict(form: Any) -> bool:
    return isinstance(form, dict) and form.get("") == "defaultdict"


def _made_by(value: collections.defaultdict[Any, Any]) -> str:
    """Name of what a `defaultdict` makes; empty where a name does not tell."""
    makes = value.default_factory
    return next((name for name, known in _FACTORIES.items() if known is makes), "")


def _without_arrays(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: _without_arrays(item) for key, item in value.items()}
    return value


def wants_gradient(fact: str) -> bool | None:
    """Whether the tensor of a fact has `requires_grad`; None where it is none of a tensor."""
    found = _TENSOR.match(fact)
    return None if found is None else found[1] is not None


def _tensor(value: torch.Tensor) -> str:
    """Shape, type and whether it wants a gradient; of a small one on the CPU the content, too."""
    shape, kind = list(value.shape), str(value.dtype).removeprefix("torch.")
    text = f"tensor {kind} {shape} {value.device.type}{_WITH_GRADIENT * value.requires_grad}"
    size = value.numel() * value.element_size()
    if value.layout != torch.strided or value.device.type != "cpu" or size > COMPARED_BYTES:
        return text
    return f"{text} {xxhash.xxh3_64_hexdigest(bytes_of(value))}"


def _checksum(array: np.ndarray[Any, Any]) -> str:
    if array.dtype.hasobject or array.nbytes > COMPARED_BYTES:
        return ""
    return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(array).tobytes())


def _position(iterator: Any) -> list[Any] | str:
    try:
        found = position(iterator)
    except Exception:  # from Python 3.14 on those of `itertools` do not tell
        return UNSEEN
    return [len(one) if isinstance(one, (list, tuple)) else one for one in found if _counts(one)]


def _counts(value: Any) -> bool:
    return value is None or isinstance(value, (int, list, tuple))
