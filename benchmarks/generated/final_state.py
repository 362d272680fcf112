"""The end of every generated program: tells all that it can reach, by path, in words.

Its text is put into the programs, which know nothing of this repository. Values are told as they
are, large ones by a digest; what has no value (a module, a lock) by its type.
"""

import contextlib
import hashlib
import types

import numpy as np
import torch


def told_state(value, path="", seen=None, depth=0):
    """Returns one line for each thing that is reached."""
    seen = {} if seen is None else seen
    if isinstance(value, (bool, int, float, complex, str, bytes, range, type(None))):
        return [f"{path} = {value!r}"[:300]]
    if isinstance(value, (torch.dtype, torch.device, np.generic, torch.Size)):
        return [f"{path} = {value!r}"]
    if id(value) in seen and not isinstance(value, (tuple, frozenset)):
        return [f"{path} is {seen[id(value)][0]}"]
    seen[id(value)] = (path, value)
    if depth > 12:
        return [f"{path}: too deep"]
    if isinstance(value, torch.Tensor):
        array = value.detach().cpu().contiguous().reshape(-1)
        lines = [f"{path}: tensor {tuple(value.shape)} {value.dtype} {digest(array.numpy())}"]
        lines[0] += f" {value.requires_grad}"
        if value.is_leaf and value.grad is not None:
            lines += told_state(value.grad, f"{path}.grad", seen, depth + 1)
        return lines
    if isinstance(value, np.ndarray):
        return [f"{path}: array {value.shape} {value.dtype} {digest(value)}"]
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
        head = [f"{path}: a function"]
    else:
        head = [f"{path}: {type(value).__name__}"]
    for name, inner in parts_of(value):
        head += told_state(inner, f"{path}{name}", seen, depth + 1)
    return head


def parts_of(value):
    """Returns what a value holds, as pairs of a path's end and what is there."""
    if isinstance(value, torch.utils.hooks.RemovableHandle):
        return []  # numbered by torch through all hooks of a process
    if isinstance(value, dict):
        keys = [f"#{n}" if isinstance(k, torch.Tensor) else repr(k) for n, k in enumerate(value)]
        return [(f"[{key}]", inner) for key, inner in zip(keys, value.values(), strict=True)]
    if isinstance(value, (set, frozenset)):
        return [(f"{{{n}}}", inner) for n, inner in enumerate(sorted(value, key=repr))]
    if isinstance(value, types.GeneratorType):
        frame = value.gi_frame
        return [] if frame is None else [(f"<{n}>", v) for n, v in frame.f_locals.items()]
    if isinstance(value, types.MethodType):
        return [(".__self__", value.__self__)]
    if isinstance(value, types.FunctionType):
        return parts_of_function(value)
    if hasattr(value, "cache_info"):
        return [(".cache_info()", str(value.cache_info()))]
    if isinstance(value, (torch.Generator, np.random.Generator)):
        state = value.get_state() if hasattr(value, "get_state") else value.bit_generator.state
        return [(".state", state)]
    if isinstance(value, type):
        own = [(n, v) for n, v in vars(value).items() if not n.startswith("__")]
        return [(f".{n}", v) for n, v in own if isinstance(v, (int, float, str, list, dict))]
    if type(value).__module__ == "random":
        return [(".state", repr(value.getstate()))]
    if hasattr(value, "getvalue"):
        return [(".getvalue()", value.getvalue())]
    found = list(enumerate(value)) if isinstance(value, (list, tuple)) else []
    found = [(f"[{n}]", inner) for n, inner in found]
    if type(value).__name__ == "deque":
        found = [(f"[{n}]", inner) for n, inner in enumerate(value)]
    if hasattr(value, "__next__") and hasattr(type(value), "__reduce__"):
        return parts_of_iterator(value)
    found += parts_of_attributes(value)
    for name in getattr(type(value), "__slots__", ()):
        if isinstance(name, str) and hasattr(value, name):
            found.append((f".{name}", getattr(value, name)))
    if isinstance(value, torch.optim.Optimizer):
        found.append((".state_dict()", value.state_dict()))
    return found


def parts_of_attributes(value):
    found, only = [], None
    if isinstance(value, torch.utils.data.dataloader._BaseDataLoaderIter):
        only = {"_sampler_iter", "_num_yielded", "_base_seed"}  # the rest is told elsewhere
    for name, inner in getattr(value, "__dict__", {}).items():
        if (only is not None and name not in only) or name in ("manager", "_builtin_open"):
            continue  # logging's: all loggers of all libraries, and the function `open`
        if "_hooks" in name and isinstance(inner, dict):
            inner = list(inner.values())  # numbered by torch through all hooks of a process
        found.append((f".{name}", inner))
    return found


def parts_of_function(function):
    if function.__module__ != "__main__" or hasattr(function, "__wrapped__"):
        return []  # of a library, or wrapped by torch's schedules and by who watches
    found = [(f".{name}", inner) for name, inner in vars(function).items()]
    found += [(f"({n})", v) for n, v in enumerate(function.__defaults__ or ())]
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            found.append((f"<{name}>", cell.cell_contents))
    return found


def parts_of_iterator(iterator):
    try:
        return [(".__reduce__()", list(iterator.__reduce__()[1:]))]
    except (TypeError, NotImplementedError):
        return parts_of_attributes(iterator)


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def tell_final_state(names):
    """Writes the file `final.txt`; `names`: the program's global variables."""
    import random

    kinds = (types.ModuleType, types.BuiltinFunctionType)
    mine = {n: v for n, v in names.items() if not n.startswith("__") and not isinstance(v, kinds)}
    own = {told_state, parts_of, parts_of_attributes, parts_of_function, parts_of_iterator}
    own |= {digest, tell_final_state}
    mine = {n: v for n, v in mine.items() if not isinstance(v, types.FunctionType) or v not in own}
    final = mine.pop("final", None)
    if isinstance(final, dict):
        final = dict(sorted(final.items()))  # `locals()` has no order of its own
    seen = {}
    lines = told_state(mine, "globals", seen) + told_state(final, "final", seen)
    lines.append(f"random = {random.random()} {np.random.random()} {torch.rand(1).item()}")
    with open("final.txt", "w") as file:
        file.write("\n".join(lines) + "\n")
